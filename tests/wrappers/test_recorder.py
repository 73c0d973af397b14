"""The recorder: which steps belong together, however episodes are begun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.wrappers.recorder import Recorder
from tests.made_up import Walk


def _step(
    recorder: Recorder, number: int, *, terminated: bool = False, truncated: bool = False, keep: bool = True
) -> Any:
    """A step of a single environment whose observation, action and reward are its number."""
    return recorder.add(
        np.array([[number]]),
        np.array([[number]]),
        np.array([float(number)]),
        np.array([terminated]),
        np.array([truncated]),
        np.array([[number + 1]]),
        keep,
    )


def test_a_trajectory_is_the_steps_between_two_resets() -> None:
    recorder = Recorder(1)
    recorder.begin()
    _step(recorder, 0)
    assert _step(recorder, 1, terminated=True)[1] == (True, 1.0, 2)
    recorder.begin()
    _step(recorder, 10)
    recorder.begin()  # in the middle of an episode
    _step(recorder, 20)
    trajectories, lengths = recorder.take()
    assert [t.observations[:, 0].tolist() for t in trajectories] == [[0, 1, 2], [10, 11], [20, 21]]
    assert [t.actions[:, 0].tolist() for t in trajectories] == [[0, 1], [10], [20]]
    assert [t.terminated for t in trajectories] == [True, False, False]
    assert lengths == (2,)
    _step(recorder, 21)
    (rest,), lengths = recorder.take()
    assert (rest.start, rest.rewards.tolist(), lengths) == (1, [21.0], ())


def test_steps_after_the_end_without_a_reset_are_none() -> None:
    recorder = Recorder(1)
    recorder.begin()
    _step(recorder, 0, truncated=True)
    real, episodes = _step(recorder, 1, truncated=True)
    assert (real.tolist(), episodes) == ([False], None)
    assert [len(t) for t in recorder.take()[0]] == [1]


def test_what_is_not_kept_counts_and_is_not_remembered() -> None:
    recorder = Recorder(1)
    recorder.begin()
    for number in range(100):
        _step(recorder, number, keep=False)
    assert len(recorder) == 0
    _, (ended, returns, lengths) = _step(recorder, 100, truncated=True, keep=False)
    assert (ended.tolist(), returns.tolist(), lengths.tolist()) == ([True], [float(sum(range(101)))], [101])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_with_every_autoreset_mode_each_trajectory_is_a_stretch_of_one_episode(mode: AutoresetMode) -> None:
    """`Walk` says in its observations which step of which episode it is, so that any mistake shows."""
    lengths = [(3, 5), (4, 4, 2), (7, 1)]
    envs = SyncVectorEnv(
        [lambda of=of: Walk(of, terminates=len(of) == 3) for of in lengths],  # type: ignore[misc]
        autoreset_mode=mode,
    )
    recorder = Recorder(3, mode)
    before, _ = envs.reset(seed=0)
    recorder.begin()
    found: list[Trajectory] = []
    episodes: list[int] = []
    for step in range(60):
        actions = envs.action_space.sample()
        after, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        last = after.copy()
        for i in np.flatnonzero(ended) if mode is AutoresetMode.SAME_STEP else ():
            last[i] = infos["final_obs"][i]
        recorder.add(before, actions, rewards, terminated, truncated, last)
        before = after
        if mode is AutoresetMode.DISABLED and ended.any():
            before, _ = envs.reset(options={"reset_mask": ended})
            recorder.begin(ended)
        if step % 13 == 12:
            trajectories, done = recorder.take()
            found += trajectories
            episodes += done
    envs.close()
    assert len(found) > 30
    for trajectory in found:
        steps, episode = trajectory.observations[:, 0], trajectory.observations[:, 1]
        assert np.array_equal(steps, trajectory.start + np.arange(len(trajectory) + 1))
        assert len(set(episode)) == 1
        assert np.allclose(trajectory.rewards, -np.abs(trajectory.observations[1:, 2]))
    assert any(trajectory.terminated for trajectory in found)
    assert set(episodes) <= {length for of in lengths for length in of}
    assert len(episodes) >= 20
