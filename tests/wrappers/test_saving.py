"""Rewards that are saved, loaded, fixed; preferences that are only collected, or only fitted to. Without Ray."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import SettingError
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers import HumanPreferencesEnv
from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Walk
from tests.wrappers.walking import REWARD_MODEL, act, make


def test_a_fixed_reward_goes_to_other_processes(in_process: SimpleNamespace, tmp_path: Path) -> None:
    RewardEnsemble(*(make_spaces := (Walk((20,)).observation_space, Walk((20,)).action_space)), REWARD_MODEL).save(
        tmp_path
    )
    with make(reward_model=tmp_path) as env:
        again = pickle.loads(cloudpickle.dumps(env))  # noqa: S301 - as SubprocVecEnv sends it
        steps = [np.zeros((3, *space.shape), np.float32) for space in (*make_spaces, make_spaces[0])]
        np.testing.assert_array_equal(again.relabel(*steps, np.zeros(3, bool)), env.relabel(*steps, np.zeros(3, bool)))


@pytest.mark.slow
def test_saved_and_loaded_it_goes_on_where_it_was(in_process: SimpleNamespace, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with make(wait=True) as env:
        act(env, 1_600)
        env.save(saved)
        env.save(saved)  # over itself
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(ValueError, match="was not written by save"):
            env.save(tmp_path)
        assert (tmp_path / "thesis.tex").exists()
        before = env.status()
        expected = [reward for _, reward, *_ in act(env, 50, seed=1)]
    with make(wait=True) as env:
        env.load(saved)
        assert [reward for _, reward, *_ in act(env, 50, seed=1)] == expected  # the normalisers too
        env.reset()
        now = env.status()
        assert now["env_steps"] == before["env_steps"] + 50
        assert (now["comparisons"], now["reward_version"]) == (before["comparisons"], before["reward_version"])
        with pytest.raises(RuntimeError, match="before the first reset"):
            env.load(saved)
        act(env, 2_000)
        assert env.status()["comparisons"] == 30
        assert in_process.rings[-1].clips[0].policy_version > 0
    assert len(PreferenceStore(saved / "preferences")) == before["comparisons"]
    assert int(RewardEnsemble.load(saved / "reward_model").version) == before["reward_version"]
    assert not [file for file in saved.rglob("*") if file.suffix in (".pkl", ".pt")]


def test_saved_before_the_first_version_it_goes_on_too(in_process: SimpleNamespace, tmp_path: Path) -> None:
    with make() as env:
        act(env, 100)
        env.save(tmp_path / "saved")
        assert not (tmp_path / "saved" / "reward_model").exists()
    with make() as env:
        env.load(tmp_path / "saved")
        assert env.status()["env_steps"] == 100
        assert act(env, 1_000)[-1][4]["reward_is_learned"]


def test_a_fixed_reward_needs_neither_labels_nor_ray(in_process: SimpleNamespace, tmp_path: Path) -> None:
    with make(wait=True) as env:
        act(env, 100)
        env.save(tmp_path / "saved")
        expected = [reward for _, reward, *_ in act(env, 50)]
    rings = len(in_process.rings)
    for path in (tmp_path / "saved", str(tmp_path / "saved" / "reward_model")):
        with HumanPreferencesEnv(Walk((20,), numbered=False), total_env_steps=1_000, reward_model=path) as env:
            assert [reward for _, reward, *_ in act(env, 50)] == expected
            act(env, 2 * WINDOW)
            env.wait_for_reward()
            assert env.status()["reward_version"] == 1
            with pytest.raises(RuntimeError, match="fixed reward"):
                env.load(tmp_path / "saved")
            env.save(tmp_path / "again")
            assert (tmp_path / "again" / "reward_model").exists()
    assert len(in_process.rings) == rings
    with pytest.raises(SettingError, match="fitted for"):
        HumanPreferencesEnv(gym.make("CartPole-v1"), total_env_steps=1_000, reward_model=tmp_path / "saved")


@pytest.mark.slow
def test_preferences_are_collected_without_fitting_and_fitted_to_without_collecting(
    in_process: SimpleNamespace, tmp_path: Path
) -> None:
    with make(fit=False, folder=tmp_path / "labels") as env:
        taken = act(env, 4_000)
        assert not any(info["reward_is_learned"] for *_, info in taken)
        assert env.status()["comparisons"] == 30
        with pytest.raises(RuntimeError, match="no reward to wait for"):
            env.wait_for_reward()
    store = tmp_path / "labels" / "preferences"
    assert len(PreferenceStore(store)) == 30
    with make(ask=False) as env:
        env.load(store)
        env.wait_for_reward()
        env.save(tmp_path / "fitted")
        assert env.status()["env_steps"] == 0
    assert RewardEnsemble.load(tmp_path / "fitted" / "reward_model").version == 1
    with make(ask=False, folder=tmp_path / "labels") as env:
        env.reset()
        env.wait_for_reward()
        act(env, WINDOW)
        assert in_process.rings[-1].clips == []
    with make(ask=False) as env, pytest.raises(RuntimeError, match="no reward to wait for"):
        env.wait_for_reward()
    assert len(PreferenceStore(store)) == 30


def test_saving_is_never_left_undone_in_silence(in_process: SimpleNamespace, tmp_path: Path) -> None:
    """drlhp only sets a flag for another process, which may not be there."""
    with make() as env:
        act(env, 10)
        in_process.rings[0]._stages._failure = OSError("the disk is gone")
        with pytest.raises(OSError, match="the disk is gone"):
            env.save(tmp_path / "failed")
    with pytest.raises(RuntimeError, match="closed"):
        env.save(tmp_path / "closed")
    assert not list(tmp_path.iterdir())
