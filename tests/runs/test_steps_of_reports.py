"""The steps that a reward's report looks at: of a run's policy and of random actions, or of a recording."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import CallableReward
from rlhf_ray.runs import interpret
from tests.made_up import FORCES, VECTORS, Walk, some_fragments


class Watching:
    """A policy that notes what it sees in each episode, and what it was asked to do there."""

    def __init__(self) -> None:
        self.episodes: list[list[float]] = []
        self.asked = 0

    def begin(self) -> Watching:
        self.episodes.append([])
        return self

    def see(self, observation: Any) -> None:
        self.episodes[-1].append(float(observation[0]))

    def act(self, observation: Any, rng: np.random.Generator) -> Any:
        self.asked += 1
        self.see(observation)
        return np.array([2.0], np.float32)  # which no random action is


def test_a_third_of_the_steps_is_the_policys_a_third_mixed_and_a_third_random(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Watching()
    monkeypatch.setattr(interpret, "STEPS", 3_000)
    monkeypatch.setattr(interpret, "newest_policy", lambda folder: (policy, 7))
    monkeypatch.setattr(interpret, "with_an_end", lambda name: Walk((70, 400)))
    folder: Any = SimpleNamespace(experiment=lambda: SimpleNamespace(environment="walk"))
    steps = interpret.steps_of_run(folder, 3)
    followed = steps.actions[:, 0] == 2.0
    for number, share in enumerate((1.0, 0.7, 0.0)):
        rows = steps.columns["policy"] == number
        assert rows.sum() == 1_000
        assert followed[rows].mean() == pytest.approx(share, abs=5 * (share * (1 - share) / 1_000) ** 0.5)
    assert policy.asked == followed.sum()
    # Episodes in turn of 70 steps, and of no more than a twelfth of all steps; the last takes what is left.
    lengths = np.unique(steps.episodes, return_counts=True)[1].tolist()
    assert sum(lengths) == 3_000
    assert set(lengths[:5]) == {70, 250}
    assert [seen == list(range(len(seen))) for seen in policy.episodes] == [True] * len(lengths)
    assert [len(seen) for seen in policy.episodes] == lengths
    again = interpret.steps_of_run(folder, 3)
    np.testing.assert_array_equal(steps.actions, again.actions)
    assert not np.array_equal(steps.actions, interpret.steps_of_run(folder, 4).actions)


@pytest.mark.parametrize(("image", "most"), [(False, 200), (True, 50)])
def test_of_a_recording_whole_episodes_are_drawn_up_to_the_most_steps(
    monkeypatch: pytest.MonkeyPatch, image: bool, most: int
) -> None:
    lengths = [20, 30] * 20
    observations = np.zeros((1_000, 16, 16, 3), np.uint8) if image else np.zeros((1_000, 2), np.float32)
    episodes = np.repeat(np.arange(40), lengths)
    recorded = Transitions(
        observations, np.arange(1_000), observations, np.zeros(1_000, bool), np.zeros(1_000), episodes,
        np.concatenate([np.arange(length) for length in lengths]),
    )  # fmt: skip
    asked: list[int] = []
    monkeypatch.setattr(interpret, "MOST_STEPS", 200)
    monkeypatch.setattr(interpret, "load_steps", lambda path, most: (asked.append(most), recorded)[1])
    drawn = [set() for _ in range(3)]
    for seed in range(3):
        data = interpret.given_steps(Path("recording"), seed)
        assert most - 30 < len(data) <= most
        for name in np.unique(data.episodes):
            assert (data.episodes == name).sum() == lengths[name]
        drawn[seed] = set(data.episodes.tolist())
    assert drawn[0] != drawn[1] != drawn[2]
    assert asked == [800] * 3  # to draw from
    even = dataclasses.replace(recorded, episodes=np.arange(1_000) // 25, steps=np.arange(1_000) % 25)
    monkeypatch.setattr(interpret, "load_steps", lambda path, most: even)
    assert len(interpret.given_steps(Path("recording"), 0)) == most  # as many as there may be
    monkeypatch.setattr(interpret, "load_steps", lambda path, most: recorded)
    monkeypatch.setattr(interpret, "MOST_STEPS", 5)
    assert len(interpret.given_steps(Path("recording"), 0)) in (20, 30)  # one at least
    monkeypatch.setattr(interpret, "load_steps", lambda path, most: recorded[:0])
    with pytest.raises(SettingError, match="--data is recording, which holds no steps"):
        interpret.given_steps(Path("recording"), 0)


def test_an_environments_own_steps_may_leave_its_bounds_and_others_may_not(tmp_path: Path) -> None:
    reward = CallableReward(lambda observations, *others: observations[:, 0], VECTORS, FORCES)
    clips = some_fragments(2)
    clips.observations[..., 0] = 100.0  # of 10
    steps = Transitions.of_fragments(clips)
    with pytest.raises(SettingError, match=str(tmp_path)):
        interpret.check_steps(reward, steps, tmp_path)
    assert len(interpret.check_steps(reward, steps, "Walk-v0")) == len(steps)
    (tmp_path / "config.json").write_text("{}")  # a run's
    assert len(interpret.check_steps(reward, steps, tmp_path)) == len(steps)
