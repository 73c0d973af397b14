"""``wait="always"``: steps wait for the labels that are due. Pausing collecting. Pairs in a store are not asked about again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.settings import PreferenceSettings, SettingError
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers import HumanPreferencesVectorEnv
from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Drawn, Walk
from tests.wrappers.test_vector import make as make_vector
from tests.wrappers.walking import PREFERENCES, act, make

SLOW = dataclasses.replace(PREFERENCES, answer_seconds=0.01, teacher="stochastic", selection="disagreement")


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_same_seed_has_the_same_labels_and_rewards(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> Any:
        with make(wait="always", preferences=SLOW, folder=tmp_path / name, seed=seed, total_env_steps=2_000) as env:
            rewards = [reward for _, reward, *_ in act(env, 1_600)]
            assert env.status()["env_steps"] == 2_000
        stored = PreferenceStore(tmp_path / name / "preferences").load()
        assert stored is not None
        return rewards, stored.pairs.ids, stored.preferences.tolist()

    first, again, other = run("first", 0), run("again", 0), run("other", 1)
    assert first == again
    assert len(first[1]) == 30
    assert first[0] != other[0]


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_after_each_step_the_labels_that_are_due_are_there_and_fitted_to() -> None:
    schedule = LabelSchedule(dataclasses.replace(SLOW, mode="synchronous"), env_steps=4_000)
    with make(wait="always", preferences=SLOW) as env:
        env.reset(seed=0)
        for _ in range(7):
            status = env.status()
            told = max(400, WINDOW * (status["env_steps"] // WINDOW))
            due = schedule.due_in_round(schedule.round_at((told - 400) / 3_600))
            assert status["comparisons"] == status["comparisons_due"] == due
            assert status["comparisons"] - status["held_out"] > 0.6 * due  # of the last fit
            act(env, WINDOW)
        act(env, 101)
        assert env.status()["comparisons"] == 30
        assert env.status()["reward_version"] == 5  # the first fit, and one in each of the 4 rounds


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_vector_environments_wait_too_and_what_is_saved_goes_on(tmp_path: Path) -> None:
    def envs() -> HumanPreferencesVectorEnv:
        copies = gym.vector.SyncVectorEnv([lambda: Walk((20,), numbered=False)] * 4)
        return make_vector(None, copies, total_env_steps=4_000, wait="always", preferences=SLOW)  # type: ignore[arg-type]

    def steps(wrapped: HumanPreferencesVectorEnv, count: int) -> list[float]:
        rng = np.random.default_rng(0)
        wrapped.reset(seed=0)
        return [float(wrapped.step(rng.uniform(-1, 1, (4, 1)).astype(np.float32))[1].sum()) for _ in range(count)]

    with envs() as one, envs() as other:
        assert steps(one, 450) == steps(other, 450)
        one.save(tmp_path / "saved")
        before = one.status()
        assert before["comparisons"] > 10
        expected = steps(one, 25)
    with envs() as one:
        one.load(tmp_path / "saved")
        assert steps(one, 25) == expected
        steps(one, 600)
        assert one.status()["comparisons"] == 30
    with make() as env, pytest.raises(SettingError, match=r"wait is False or True, but .* saved with wait='always'"):
        env.load(tmp_path / "saved")


@pytest.mark.usefixtures("in_process")
def test_labels_are_collected_without_fitting_and_fitted_to_without_collecting(tmp_path: Path) -> None:
    with make(wait="always", folder=tmp_path, fit=False) as env:
        env._wait = False  # the first reset waits for a reward, which there won't be
        act(env, 4_000)
        assert (env.status()["comparisons"], env.status()["reward_version"]) == (30, 0)
    with make(wait="always", ask=False) as env:
        env.load(tmp_path / "preferences")
        assert act(env, WINDOW)[0][4]["reward_is_learned"]
        assert (env.status()["comparisons"], env.status()["comparisons_due"]) == (30, 0)


@pytest.mark.parametrize("wait", [True, "always"])
@pytest.mark.parametrize("how", ["folder", "load"])
def test_pairs_that_the_store_has_are_not_asked_about_again(
    in_process: SimpleNamespace, tmp_path: Path, wait: Any, how: str
) -> None:
    few = PreferenceSettings(comparisons=10, initial_comparisons=10, rounds=0)
    with make(wait=wait, preferences=few, folder=tmp_path / "labels") as env:
        env.reset()
    store = tmp_path / "labels" / "preferences"
    assert len(PreferenceStore(store)) == 10
    twice = PreferenceSettings(comparisons=20, initial_comparisons=20, rounds=0)
    folder = tmp_path / "labels" if how == "folder" else tmp_path / "other"
    with make(wait=wait, preferences=twice, folder=folder) as env:  # the same seed, so the same clips
        if how == "load":
            env.load(store)
        env.reset()
        ring = env._session.ring
        assert ring is not None
        assert ring.actors.gatherers[0].asked == 10
        assert env.status()["comparisons"] == 20


def test_waiting_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match=r"wait is 'never'; it must be False, True or 'always'"):
        make(wait="never")
    both = PreferenceSettings(mode="asynchronous", human_share=0.5)
    with pytest.raises(SettingError, match=r"preferences\.human_share is 0\.5, but wait is 'always'"):
        make(Drawn(), wait="always", preferences=both)


UP = np.array([0.5], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [False, "always"])
def test_collecting_can_be_paused_alone(in_process: SimpleNamespace, wait: Any) -> None:
    with make(wait=wait) as env:
        act(env, 2 * WINDOW)
        ring: Any = env._session.ring
        sent = []
        add = ring.source.take
        ring.source.take = lambda clips, *rest, **named: (sent.append(clips), add(clips, *rest, **named))[1]
        before = env.status()
        assert before["collecting"]
        assert before["comparisons"] >= 10
        env.pause_collecting()
        act(env, 3 * WINDOW)
        status = env.status()
        assert status["env_steps"] == before["env_steps"] + 3 * WINDOW
        assert (status["comparisons"], status["collecting"]) == (before["comparisons"], False)
        assert sent == []
        env.resume_collecting()
        act(env, WINDOW)
        assert env.status()["comparisons"] == env.status()["comparisons_due"] > before["comparisons"]
        (clips,) = sent
        steps = clips.fragments.observations[:, :, 0]
        assert (np.diff(steps, axis=1) == 1).all()
        act(env, WINDOW)
        env.pause_collecting()
        act(env, 3 * WINDOW)
        env.resume_collecting()
        act(env, WINDOW)  # the labels of the pause are made up for
        assert env.status()["comparisons"] == 30


def test_clips_do_not_join_the_steps_before_a_pause_and_after_it(in_process: SimpleNamespace) -> None:
    with make(Walk((20,))) as env:
        act(env, 13)
        env.pause_collecting()
        act(env, 13)
        env.resume_collecting()
        for _ in range(7 + WINDOW):  # from the 14th step of another episode on
            *_, truncated, _ = env.step(UP)
            if truncated:
                env.reset()
        clips = in_process.rings[0].clips[0].fragments
        episodes = clips.observations[:, :, 1]
        assert (episodes == episodes[:, :1]).all()
        assert episodes.min() == 1


def test_a_reward_is_not_waited_for_while_collecting_is_paused(in_process: SimpleNamespace) -> None:
    with make() as env:
        env.pause_collecting()
        act(env, 2 * WINDOW)
        assert env.status()["comparisons"] == 0
        with pytest.raises(RuntimeError, match="collecting is paused"):
            env.wait_for_reward()
        env.resume_collecting()
        act(env, 2 * WINDOW)
        assert env.status()["reward_version"] >= 1
