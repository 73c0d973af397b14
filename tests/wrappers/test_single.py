"""`HumanPreferencesEnv`, without Ray."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.data.metrics import metric_of
from rlhf_ray.envs import make_env
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv
from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Drawn, Walk
from tests.wrappers.walking import VARIABLE, act, make


class Views(gym.Env[Any, Any]):
    """Images and a number in a Dict. The true reward is how bright the image is."""

    observation_space = gym.spaces.Dict(
        pov=gym.spaces.Box(0, 255, (20, 20, 3), np.uint8), compass=gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    )
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation = self._observation()
        return observation, float(observation["pov"].mean()) / 255, False, self.steps >= 12, {}

    def _observation(self) -> Any:
        brightness = self.np_random.integers(0, 256)
        return {"pov": np.full((20, 20, 3), brightness, np.uint8), "compass": np.zeros(1, np.float32)}


class Missions(Views):
    """Views with a text, which no network here reads."""

    observation_space = gym.spaces.Dict({**Views.observation_space.spaces, "mission": gym.spaces.Text(20)})


@pytest.mark.slow
def test_the_reward_is_learned_once_it_can_be_and_the_true_one_is_always_in_info(in_process: SimpleNamespace) -> None:
    good = RewardModelSettings(hidden=(32,), learning_rate=1e-2, initial_updates=100, updates=50)
    with make(reward_model=good) as env:
        taken = act(env, 4_000)
    learned = [info["reward_is_learned"] for *_, info in taken]
    first = learned.index(True)
    assert WINDOW <= first <= 2 * WINDOW
    assert all(learned[first:])
    assert {reward for _, reward, *_ in taken[:first]} == {0.0}
    assert all(info["true_reward"] == -abs(observation[2]) for observation, *_, info in taken)
    assert in_process.rings[0].answered == 30
    rewards, true = np.array([(step[1], step[4]["true_reward"]) for step in taken[-1_000:]]).T
    assert np.corrcoef(rewards, true)[0, 1] > 0.5
    assert not np.allclose(rewards, true)
    assert all(type(reward) is float for _, reward, *_ in taken)


@pytest.mark.slow
def test_before_the_first_labels_pretraining_rewards_novelty(in_process: SimpleNamespace) -> None:
    preferences = PreferenceSettings(comparisons=30, initial_comparisons=10, rounds=4, pretraining_env_steps=2 * WINDOW)
    with make(preferences=preferences) as env:
        taken = act(env, 6 * WINDOW)
    learned = [info["reward_is_learned"] for *_, info in taken]
    first = learned.index(True)
    assert first >= 3 * WINDOW  # pretraining, then the first fragments
    rewards = np.array([reward for _, reward, *_ in taken[:first]])
    assert len(set(rewards[100:].tolist())) > 0.9 * (first - 100)
    assert in_process.rings[0].answered >= 10


def test_pretraining_needs_vectors_and_no_wait() -> None:
    of = PreferenceSettings(comparisons=30, pretraining_env_steps=5)
    with pytest.raises(SettingError, match=r"preferences\.pretraining_env_steps is 5, but distances between"):
        HumanPreferencesEnv(make_env("rlhf_ray/MovingDot-v0"), total_env_steps=5_000, preferences=of)
    with pytest.raises(SettingError, match=r"preferences\.pretraining_env_steps is 5, but wait is True"):
        HumanPreferencesEnv(Walk((20,), numbered=False), total_env_steps=5_000, preferences=of, wait=True)


def test_episode_statistics_are_of_the_true_reward(in_process: SimpleNamespace) -> None:
    with make() as env:
        taken = act(env, 100)
        true = np.array([info["true_reward"] for *_, info in taken]).reshape(5, 20).sum(1)
        episodes = [info["episode"] for *_, info in taken if "episode" in info]
        assert np.allclose([episode["r"] for episode in episodes], true)
        assert {episode["l"] for episode in episodes} == {20}
        assert np.allclose(env.true_returns, true)
    inner = gym.wrappers.RecordEpisodeStatistics(Walk((20,), numbered=False))
    with make(inner) as env:
        assert np.allclose(act(env, 20)[-1][4]["episode"]["r"], inner.return_queue[-1])


@pytest.mark.slow
def test_what_is_asked_about_is_what_the_agent_did(in_process: SimpleNamespace) -> None:
    with make(Walk((20, 7), terminates=True), preferences=VARIABLE) as env:
        act(env, 3_000)
    clips = [clips.fragments for clips in in_process.rings[0].clips]
    assert len(clips) == 3_000 // WINDOW
    for fragments in clips:
        steps, episodes = fragments.observations[:, :, 0], fragments.observations[:, :, 1]
        assert np.array_equal(steps, fragments.starts[:, None] + np.arange(6))
        assert (episodes == episodes[:, :1]).all()
        moved = np.diff(fragments.observations[:, :, 2], axis=1)
        assert np.abs(moved - fragments.actions[:, :, 0]).max() < 0.6  # the noise's deviation is 0.1
        assert np.allclose(fragments.rewards, -np.abs(fragments.observations[:, 1:, 2]))
        lengths = np.where(episodes[:, 0] % 2 == 0, 20, 7)
        assert np.array_equal(fragments.terminated, steps[:, -1] == lengths)
    assert sum(fragments.terminated.sum() for fragments in clips) > 10
    assert [fragments.policy_versions[0] for fragments in clips] == list(range(6))


def test_memory_is_bounded_and_clips_nobody_takes_are_dropped_and_counted(in_process: SimpleNamespace) -> None:
    with make() as env:
        env.reset()
        act(env, WINDOW)
        in_process.rings[0].source.busy = True
        act(env, 3 * WINDOW)
        assert len(env._recorder) == 0
        assert env.status()["fragments_dropped"] == 3
        assert env.status()["env_steps"] == 4 * WINDOW
        assert len(in_process.rings[0].advances) == 4


def test_the_last_step_of_the_budget_is_told_however_the_windows_fall(in_process: SimpleNamespace) -> None:
    with make(total_env_steps=WINDOW + 17) as env:
        act(env, WINDOW + 40)
        assert in_process.rings[0].advances[-1] == (1.0, WINDOW + 17)
        assert env.status()["comparisons"] == 30


def test_waiting_takes_random_actions_first_and_the_agent_never_sees_another_reward(
    in_process: SimpleNamespace,
) -> None:
    with make(wait=True) as env:
        taken = act(env, 1_000)
        assert all(info["reward_is_learned"] for *_, info in taken)
        assert env.status()["env_steps"] == 1_400
        assert env.status()["reward_version"] >= 1
        env.reset()
        assert env.status()["env_steps"] == 1_400  # only once
        clips = in_process.rings[0].clips
        assert {version for c in clips[:1] for version in c.fragments.policy_versions} == {RANDOM_POLICY}
        assert RANDOM_POLICY not in clips[1].fragments.policy_versions
        assert in_process.rings[0].advances[0] == (0.0, 400)


def test_a_dict_space_works_from_end_to_end_by_its_transform(in_process: SimpleNamespace) -> None:
    arguments: dict[str, Any] = {"observation_transform": lambda observation: observation["pov"]}
    with make(Views(), wait=True, **arguments) as env:
        env.reset()
        taken = [env.step(0) for _ in range(12)]
        assert set(taken[0][0]) == {"pov", "compass"}  # the agent gets the whole
        assert in_process.rings[0].clips[0].fragments.observations.shape[1:] == (6, 20, 20, 3)
        assert in_process.rings[0].clips[0].fragments.observations.dtype == np.uint8
        assert taken[-1][4]["reward_is_learned"]
        assert len({reward for _, reward, *_ in taken}) > 1
    with pytest.raises(SettingError, match="observation_transform"):
        make(Missions())
    with pytest.raises(SettingError, match=r"This is the output of observation_transform"):
        make(Views(), observation_transform=lambda observation: observation["pov"][:, 0])
    assert in_process.held == 0


def test_switching_the_reward_is_idempotent_and_survives_new_versions(in_process: SimpleNamespace) -> None:
    with make(wait=True) as env:
        env.use_learned_reward()
        assert act(env, 1)[0][4]["reward_is_learned"]
        for _ in range(2):
            env.use_true_reward()
        versions = env.status()["reward_version"]
        taken = act(env, 2_000)
        assert in_process.rings[0].version > versions
        assert all(reward == info["true_reward"] for _, reward, *_, info in taken)
        assert not any(info["reward_is_learned"] for *_, info in taken)
        env.use_learned_reward()
        assert act(env, 1)[0][4]["reward_is_learned"]
        assert env.status()["reward_version"] == in_process.rings[0].version


def test_while_paused_steps_neither_count_nor_give_clips(in_process: SimpleNamespace) -> None:
    with make() as env:
        act(env, 10)
        for _ in range(2):
            env.pause()
        act(env, 2 * WINDOW)
        assert env.status()["env_steps"] == 10
        env.resume()
        act(env, WINDOW)
        (clips,) = in_process.rings[0].clips
        assert clips.fragments is not None
        assert len(env.true_returns) == 3 * WINDOW // 20  # episodes end all the same


def test_what_goes_wrong_in_the_ring_is_raised_in_step(in_process: SimpleNamespace) -> None:
    with make() as env:
        act(env, 10)
        in_process.rings[0].failure = OSError("the disk is gone")
        with pytest.raises(OSError, match="the disk is gone"):
            act(env, WINDOW)


def test_settings_that_the_environment_shows_to_be_wrong_are_raised_in_step(in_process: SimpleNamespace) -> None:
    with (
        make(Walk((20, 7), terminates=True)) as env,
        pytest.raises(SettingError, match="allow_variable_horizon is False"),
    ):
        act(env, 3 * WINDOW)
    with make(Walk((4,))) as env, pytest.raises(SettingError, match=r"fragments\.length is 5"):
        act(env, 3 * WINDOW)
    with make(Walk((4,)), wait=True) as env, pytest.raises(SettingError, match=r"fragments\.length is 5"):
        env.reset()


SENT: dict[str, Any] = {
    "pickled": pickle.dumps,
    "in a lambda": lambda env: cloudpickle.dumps(lambda: env.share(Walk((20,), numbered=False))),
    "copied": copy.deepcopy,
}


@pytest.mark.parametrize("how", SENT)
def test_an_environment_that_leaves_its_process_says_what_works(in_process: SimpleNamespace, how: str) -> None:
    """SubprocVecEnv pickles what makes its environments."""
    with (
        make() as env,
        pytest.raises(RuntimeError, match=r"DummyVecEnv in place of SubprocVecEnv.*VectorEnv\(gym\.make_vec"),
    ):
        SENT[how](env)


def test_a_forked_environment_says_so_and_leaves_the_ring_to_its_process(
    in_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AsyncVectorEnv forks by default, and so does SubprocVecEnv if asked to."""
    env = make()
    here = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: here + 1)
        for use in (lambda: env.share(Walk((20,), numbered=False)), env.reset):
            with pytest.raises(RuntimeError, match="only in the process that made the first"):
                use()
        env._session.leave()
    assert in_process.rings[0].closed == 0
    env._session.users = 1
    env.close()
    assert in_process.rings[0].closed == 1


def test_environments_that_share_a_ring_have_one_budget_one_reward_and_one_end(in_process: SimpleNamespace) -> None:
    first = make(wait=True)
    second = first.share(Walk((20,), numbered=False))
    for env in (first, second):
        assert all(info["reward_is_learned"] for *_, info in act(env, WINDOW))
    assert len(in_process.rings) == 1
    assert second.status()["env_steps"] == 400 + 2 * WINDOW
    assert {clips.source for clips in in_process.rings[0].clips} == {0, 1}
    second.use_true_reward()
    assert act(first, 1)[0][4]["reward_is_learned"]
    first.close()
    first.close()
    assert (in_process.rings[0].closed, in_process.held) == (0, 1)
    act(second, WINDOW)
    second.close()
    assert (in_process.rings[0].closed, in_process.held) == (1, 0)
    with pytest.raises(RuntimeError, match="closed"):
        act(second, 1)
    with pytest.raises(ValueError, match="different spaces"):
        make().share(Views())


def test_the_same_seed_makes_the_same_run_and_leaves_other_generators_alone(in_process: SimpleNamespace) -> None:
    def states() -> Any:
        of_numpy: Any = np.random.get_state()
        return random.getstate(), of_numpy[1].tolist(), torch.get_rng_state().tolist()

    def run(seed: int) -> list[float]:
        before = states()
        with make(seed=seed, wait=True) as env:
            env.action_space.seed(5)
            rewards = [reward for _, reward, *_ in act(env, 100)]
            assert env.action_space.sample() == pytest.approx(drawn)
            assert states() == before
        return rewards

    space = Walk().action_space
    space.seed(5)
    drawn = space.sample()
    assert run(0) == run(0) != run(1)


def test_settings_that_do_not_fit_are_refused_before_anything_is_started(in_process: SimpleNamespace) -> None:
    with pytest.raises(SettingError, match="exploration_env_steps"):
        make(fragments=FragmentSettings(exploration_env_steps=10))
    with pytest.raises(SettingError, match="total_env_steps"):
        make(total_env_steps=400)
    numbered = gym.wrappers.TransformObservation(
        Walk(), lambda observation: int(observation[0]), gym.spaces.Discrete(99)
    )
    with pytest.raises(SettingError, match="FlattenObservation"):
        make(numbered)
    with pytest.raises(SettingError, match="'gru', which reads the steps before"):
        make(reward_model=RewardModelSettings(network="gru"))
    assert in_process.rings == []


@pytest.mark.parametrize("switched_off", ["fit", "ask", "nothing"])
def test_a_ring_with_nothing_to_do_uses_no_processor(
    in_process: SimpleNamespace, tmp_path: Path, switched_off: str
) -> None:
    """drlhp's background loop copies its databases over and over if it is told not to train."""
    arguments = {} if switched_off == "nothing" else {switched_off: False}
    with make(folder=tmp_path, **arguments) as env:
        act(env, 2 * WINDOW)
        assert in_process.rings[0]._stages._thread.is_alive()
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.1


def test_people_need_a_folder_and_only_labels_with_one_survive_it(in_process: SimpleNamespace, tmp_path: Path) -> None:
    env = make(wait=True)
    env.reset()
    folder = in_process.rings[0].actors.settings.store
    assert Path(folder).exists()
    env.close()
    assert not Path(folder).exists()
    with pytest.raises(SettingError, match="would be lost"):
        make(Drawn(), preferences=PreferenceSettings(teacher="human"))


@pytest.mark.parametrize("kind", [HumanPreferencesEnv, HumanPreferencesVectorEnv])
def test_every_argument_is_documented_under_its_name(kind: Any) -> None:
    arguments = set(inspect.signature(kind).parameters)
    section = inspect.getdoc(kind).split("Args:")[1].split("Raises:")[0]
    named = {name for line in re.findall(r"^    (\w[\w, ]*):", section, re.MULTILINE) for name in line.split(", ")}
    assert named == arguments


def test_the_status_tells_what_a_run_measures_of_fits_and_labels(in_process: SimpleNamespace) -> None:
    skips = PreferenceSettings(comparisons=30, initial_comparisons=10, rounds=4, teacher="skip", skip=1.0)
    with make(preferences=skips, wait="always") as env:
        assert set(env.status()) >= {"skipped", "comparisons", "env_steps"}  # before the first fit too
        act(env, 2_000)
        status, report = env.status(), env._session.last_fit
    assert report is not None
    assert status["skipped"] > 0
    assert set(report.metrics()) - {"version"} <= set(status)
    assert status["held_out_brier"] == pytest.approx(report.held_out_brier, nan_ok=True)
    known = {"unlearned_steps", "fragments_dropped", "comparisons_due", "collecting", "comparisons", "env_steps"}
    assert [name for name in status if metric_of(name) is None and name not in known] == []


def test_the_wrapper_is_an_environment_as_gymnasium_has_them(in_process: SimpleNamespace) -> None:
    from gymnasium.utils.env_checker import check_env

    with make(gym.make("Pendulum-v1")) as env:
        check_env(env, skip_render_check=True, skip_close_check=True)
        assert env.spec is not None
