"""`HumanPreferencesVectorEnv`, without Ray; and both wrappers in a script whose environments or torch are odd."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, SettingError
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv
from tests.envs.test_shared_arrays import Scribbles, ScribblesTogether, check
from tests.made_up import Walk
from tests.wrappers.test_single import Missions, Views
from tests.wrappers.walking import FRAGMENTS, REWARD_MODEL, VARIABLE
from tests.wrappers.walking import act as act_in_one
from tests.wrappers.walking import make as make_one

LENGTHS = [(20, 7), (9, 16), (30, 1)]


def make(mode: AutoresetMode, envs: Any = None, **arguments: Any) -> HumanPreferencesVectorEnv:
    if envs is None:
        copies = [lambda of=of: Walk(of, terminates=True) for of in LENGTHS]  # type: ignore[misc]
        envs = SyncVectorEnv(copies, autoreset_mode=mode, copy=False)
    defaults: dict[str, Any] = {
        "total_env_steps": 2_500,
        "fragments": FRAGMENTS,
        "preferences": VARIABLE,
        "reward_model": REWARD_MODEL,
    }
    return HumanPreferencesVectorEnv(envs, **(defaults | arguments))


def act(envs: HumanPreferencesVectorEnv, steps: int) -> list[Any]:
    """What ``steps`` steps of all copies gave, from a reset on; copies, since the environment reuses its arrays."""
    envs.action_space.seed(0)
    envs.reset(seed=0)
    taken = []
    for _ in range(steps):
        observations, *rest = envs.step(envs.action_space.sample())
        taken.append((np.array(observations), *rest))
        ended = rest[1] | rest[2]
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_clips_never_cross_an_episode_and_rewards_are_learned(
    in_process: SimpleNamespace, mode: AutoresetMode, wait: bool
) -> None:
    with make(mode, wait=wait) as envs:
        taken = act(envs, 1_000)
        steps = envs.status()["env_steps"] - 400 * wait
    assert sum(info["_true_reward"].sum() for *_, info in taken) == pytest.approx(steps, abs=2)
    assert taken[-1][4]["reward_is_learned"].any()
    assert len({float(reward) for _, rewards, *_ in taken[-50:] for reward in rewards}) > 50
    assert in_process.rings[0].answered == 30
    fragments = [clips.fragments for clips in in_process.rings[0].clips if clips.fragments is not None]
    assert len(fragments) >= 5
    for some in fragments:
        numbers, episodes = some.observations[:, :, 0], some.observations[:, :, 1]
        assert np.array_equal(numbers, some.starts[:, None] + np.arange(6))
        assert (episodes == episodes[:, :1]).all()
        assert np.allclose(some.rewards, -np.abs(some.observations[:, 1:, 2]))
    assert any(some.terminated.any() for some in fragments)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_follow_gymnasiums_convention(in_process: SimpleNamespace, mode: AutoresetMode) -> None:
    with make(mode) as envs:
        taken = act(envs, 100)
    assert all(rewards.tolist() == [0.0] * 3 for _, rewards, *_ in taken)
    returns, ended = np.zeros(3), [0, 0, 0]
    for _, _, terminated, truncated, infos in taken:
        real, done = infos["_true_reward"], terminated | truncated
        assert real.dtype == infos["reward_is_learned"].dtype == infos["_reward_is_learned"].dtype == bool
        returns += infos["true_reward"] * real
        assert ("episode" in infos) == done.any()
        if done.any():
            assert np.array_equal(infos["_episode"], done)
            assert np.allclose(infos["episode"]["r"], returns * done)
            for i in np.flatnonzero(done):
                assert infos["episode"]["l"][i] == LENGTHS[i][ended[i] % 2]
                ended[i] += 1
        returns[done] = 0.0
    assert min(ended) >= 6
    if mode is AutoresetMode.NEXT_STEP:  # in the other modes gymnasium 1.2's own leaves steps out
        copies = [lambda of=of: Walk(of, terminates=True) for of in LENGTHS]  # type: ignore[misc]
        plain = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv(copies, autoreset_mode=mode))
        plain.action_space.seed(0)
        plain.reset(seed=0)
        for *_, infos in taken:
            expected = plain.step(plain.action_space.sample())[4]
            for name in ("r", "l") if "episode" in expected else ():
                assert np.allclose(infos["episode"][name], expected["episode"][name])


def test_the_step_that_resets_is_none(in_process: SimpleNamespace) -> None:
    with make(AutoresetMode.NEXT_STEP, wait=True) as envs:
        before = np.zeros(3, bool)
        for _, rewards, terminated, truncated, infos in act(envs, 200):
            assert np.array_equal(infos["_true_reward"], ~before)
            assert (rewards[before] == 0.0).all()
            assert (rewards[~before] != 0.0).all()
            before = terminated | truncated


def test_the_true_reward_is_the_environments_own_array(in_process: SimpleNamespace) -> None:
    with make(AutoresetMode.SAME_STEP, wait=True) as envs:
        envs.use_true_reward()
        for _, rewards, *_, infos in act(envs, 50):
            assert np.array_equal(rewards, infos["true_reward"])
            assert not infos["reward_is_learned"].any()
            rewards += 1.0  # the caller's own
            assert not np.array_equal(rewards, infos["true_reward"])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_dict_space_works_from_end_to_end(in_process: SimpleNamespace, mode: AutoresetMode) -> None:
    pictures = SyncVectorEnv([Views, Views], autoreset_mode=mode)
    with make(mode, pictures, observation_transform=lambda observation: observation["pov"], wait=True) as envs:
        envs.reset(seed=0)
        for _ in range(12):
            observations, rewards, *_, infos = envs.step(np.zeros(2, int))
        assert observations["pov"].shape == (2, 20, 20, 3)
        assert infos["reward_is_learned"].all()
        assert rewards[0] != rewards[1]
    with pytest.raises(SettingError, match="observation_transform"):
        make(mode, SyncVectorEnv([Missions, Missions], autoreset_mode=mode))


def test_how_episodes_are_begun_has_to_be_known(in_process: SimpleNamespace) -> None:
    envs = SyncVectorEnv([Walk])
    envs.metadata = {}
    with pytest.raises(SettingError, match="autoreset_mode"):
        make(AutoresetMode.NEXT_STEP, envs)
    assert in_process.rings == []


class Named(Walk):
    """A walk whose observations are a Dict, and whose actions are two switches."""

    def __init__(self) -> None:
        super().__init__((20,), numbered=False)
        self.observation_space: Any = gym.spaces.Dict(
            at=gym.spaces.Box(-np.inf, np.inf, (1,)), step=gym.spaces.Discrete(30)
        )
        self.action_space: Any = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, **arguments: Any) -> Any:
        return self._named(super().reset(**arguments)[0]), {}

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(np.array([float(action[0]) - float(action[1]) / 2]))
        return self._named(seen), *rest

    def _named(self, seen: Any) -> Any:
        return {"at": seen[2:].astype(np.float32), "step": int(seen[0])}


@pytest.mark.parametrize("vector", [False, True])
def test_a_dict_of_numbers_and_several_actions_need_no_transform(vector: bool, in_process: SimpleNamespace) -> None:
    mode, few = AutoresetMode.NEXT_STEP, PreferenceSettings(comparisons=12, initial_comparisons=10, rounds=1)
    made: Any = make(mode, SyncVectorEnv([Named] * 2), preferences=few, wait=True) if vector else None
    with made or make_one(Named(), preferences=few, wait=True) as env:
        env.action_space.seed(0)
        before, _ = env.reset(seed=0)
        action = env.action_space.sample()
        after, reward, _, _, info = env.step(action)
        assert np.all(info["reward_is_learned"])
        rows = [
            {name: np.atleast_1d(of) if vector else np.array([of]) for name, of in seen.items()}
            for seen in (before, after)
        ]
        count = 2 if vector else 1
        expected = env.relabel(rows[0], np.reshape(action, (count, 2)), rows[1], np.zeros(count, bool))
        np.testing.assert_allclose(np.atleast_1d(reward), expected, rtol=1e-5)
        assert env._session.spaces[0].shape == (31,)


def test_spaces_of_one_environment_in_place_of_all_are_refused() -> None:
    """EnvPool's own pools have them."""
    pool = SyncVectorEnv([lambda: Walk((9, 7))] * 2)
    pool.action_space = pool.single_action_space
    with pytest.raises(SettingError, match=r'that of one environment.*make_vector_env\("envpool/ID", 2\)'):
        make(AutoresetMode.NEXT_STEP, pool)


SEEN = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ((SEEN, 1.0, "False", False), "terminated='False'; it must be True or False"),
        ((SEEN, 1.0, False, float("nan")), "truncated=nan; it must be True or False"),
        ((SEEN, "0.5", False, False), "the reward is '0.5', which is not a number"),
        ((np.array([0.0, 1e39, 0.0]), 1.0, False, False), r"its value 1e\+39 is not a float32"),
    ],
)
def test_an_outcome_that_is_none_is_said_with_the_environment(
    in_process: SimpleNamespace, outcome: Any, said: str
) -> None:
    env = Walk((20,), numbered=False)
    env.step = lambda action: (*outcome, {})  # type: ignore[method-assign]
    with make_one(env) as wrapped:
        wrapped.reset(seed=0)
        with pytest.raises(FaultyEnvironmentError, match=f"Environment .*Walk.*{said}"):
            wrapped.step(np.zeros(1, np.float32))


def test_a_reward_is_the_same_in_a_script_that_changed_torchs_defaults(
    in_process: SimpleNamespace, tmp_path: Path
) -> None:
    with make_one(wait=True) as env:
        act_in_one(env, 10)
        env.save(tmp_path / "taught")

    def rewards() -> list[float]:
        with make_one(reward_model=tmp_path / "taught") as env:
            return [reward for _, reward, *_ in act_in_one(env, 30)]

    expected = rewards()
    torch.set_default_dtype(torch.float64)
    try:
        assert rewards() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_process")
def test_what_environments_change_or_hand_out_again_is_kept_and_given_as_it_was() -> None:
    few: dict[str, Any] = {
        "total_env_steps": 100, "fragments": FragmentSettings(length=3), "preferences": PreferenceSettings(comparisons=4),
    }  # fmt: skip
    single = HumanPreferencesEnv(Scribbles("Box"), ask=False, **few)
    together = HumanPreferencesVectorEnv(ScribblesTogether(2, "Box"), ask=False, **few)
    rng = np.random.default_rng(0)
    try:
        for env, shape in ((single, (3,)), (together, (2, 3))):
            observations, actions = [env.reset(seed=0)[0]], []
            for _ in range(4):
                given = rng.uniform(-1, 1, shape).astype(np.float32)
                actions.append(given.copy())
                observations.append(env.step(given)[0])
                np.testing.assert_array_equal(given, actions[-1])
            first = (slice(None), 0) if len(shape) == 2 else (slice(None),)
            check(np.stack(observations)[first], np.stack(actions)[first], 4)
    finally:
        single.close()
        together.close()
