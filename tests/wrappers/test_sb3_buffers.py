"""Buffers of Stable-Baselines3's agents, whose learned reward changes; the environment's own, about 1,000, reaches none of them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RescaleAction, TransformObservation
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from rlhf_ray.settings import PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.wrappers import HumanPreferencesEnv, relabel_replay_buffer
from rlhf_ray.wrappers.session import WINDOW
from tests.generous import LEAST, LENGTH, Generous, largest
from tests.made_up import Walk
from tests.wrappers.test_single import Views
from tests.wrappers.test_vector import make as make_vector
from tests.wrappers.walking import REWARD_MODEL, make

MEMORY: dict[str, Any] = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
READS_ENDS = RewardModelSettings(hidden=(8,), batch_size=8, initial_updates=20, use_next_state=True)


class GoalEnv(Generous):
    """With goals, and the true reward of any of them."""

    observation_space: Any = gym.spaces.Dict(
        {
            name: gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )

    def _observation(self) -> Any:
        return dict.fromkeys(self.observation_space.spaces, super()._observation())

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.full(len(achieved), LEAST, np.float32)


def generous(kind: Any = Generous) -> gym.Env[Any, Any]:
    return kind((LENGTH,), numbered=False)  # type: ignore[no-any-return]


def wrapped(kind: Any = Generous, **arguments: Any) -> HumanPreferencesEnv:
    see = {"observation_transform": lambda observation: observation["observation"]} if kind is GoalEnv else {}
    return make(generous(kind), wait=True, **see, **arguments)


def agent_of(kind: str, vector: Any) -> Any:
    if kind == "RolloutBuffer":
        return PPO("MlpPolicy", vector, n_steps=100, batch_size=50, device="cpu")
    if kind == "Normalised":
        vector = VecNormalize(vector)
    of: Any = MEMORY if kind == "Memory" else {}
    if kind == "NStepReplayBuffer":
        of = {"replay_buffer_class": NStepReplayBuffer}
    policy = "MultiInputPolicy" if kind == "DictReplayBuffer" else "MlpPolicy"
    return SAC(policy, vector, learning_starts=150, buffer_size=150, train_freq=50, device="cpu", **of)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["RolloutBuffer", "ReplayBuffer", "Memory", "NStepReplayBuffer", "DictReplayBuffer", "Normalised"]
)
def test_no_buffer_of_an_agent_gets_the_true_reward(in_process: SimpleNamespace, kind: str) -> None:
    with wrapped(GoalEnv if kind == "DictReplayBuffer" else Generous) as env:
        agent = agent_of(kind, DummyVecEnv([lambda: Monitor(env)]))
        agent.learn(200)
        if kind == "RolloutBuffer":
            found = [vars(agent.rollout_buffer)]
            with pytest.raises(ValueError, match="PPO has no replay buffer"):
                relabel_replay_buffer(agent, env)
        else:
            found = [vars(agent.replay_buffer)]
            assert relabel_replay_buffer(agent, env) == 150
            samples = agent.replay_buffer.sample(100, agent.get_vec_normalize_env())
            found += [vars(agent.replay_buffer), tuple(samples), [returned["r"] for returned in agent.ep_info_buffer]]
        assert largest(found) < LEAST / 2
        assert max(env.true_returns) > LENGTH * LEAST
        *stepped, info = env.step(np.zeros(1, np.float32))
        assert largest(stepped) < LEAST / 2
        assert {name for name in info if largest(info[name]) > LEAST / 2} <= {"true_reward", "episode"}


@pytest.mark.slow
def test_a_vector_environment_gives_no_true_reward(in_process: SimpleNamespace) -> None:
    with make_vector(None, SyncVectorEnv([generous] * 2), wait=True) as envs:  # type: ignore[arg-type]
        envs.reset(seed=0)
        for _ in range(2 * LENGTH):
            *stepped, infos = envs.step(np.zeros((2, 1), np.float32))
            assert largest(stepped) < LEAST / 2
            assert {name for name in infos if largest(infos[name]) > LEAST / 2} <= {"true_reward", "episode"}


@pytest.mark.slow
def test_a_buffer_that_computes_rewards_of_its_own_is_refused(in_process: SimpleNamespace) -> None:
    with wrapped(GoalEnv) as env:
        agent = SAC("MultiInputPolicy", DummyVecEnv([lambda: env]), replay_buffer_class=HerReplayBuffer,
                    learning_starts=50, train_freq=50, device="cpu")  # fmt: skip
        with pytest.raises(SettingError, match=r"HerReplayBuffer does; .* use a DictReplayBuffer"):
            agent.learn(110)
        with pytest.raises(ValueError, match="use a DictReplayBuffer"):
            relabel_replay_buffer(agent, env)
        env.use_true_reward()
        buffer: Any = agent.replay_buffer
        assert largest(buffer.sample(50).rewards) == LEAST


def test_a_buffer_without_the_last_observations_is_refused_by_a_reward_that_reads_them(
    in_process: SimpleNamespace,
) -> None:
    with wrapped(reward_model=READS_ENDS) as env:
        agent = agent_of("Memory", DummyVecEnv([lambda: env]))
        agent.learn(100)
        with pytest.raises(ValueError, match=r"use_next_state.* create it with optimize_memory_usage=False"):
            relabel_replay_buffer(agent, env)
        assert env.status()["reward_version"]
        assert REWARD_MODEL.use_next_state is False


@pytest.mark.parametrize("changed", ["observations", "actions", ""])
def test_a_buffer_of_what_a_wrapper_outside_made_of_it_is_refused(in_process: SimpleNamespace, changed: str) -> None:
    with wrapped() as env:
        outside: gym.Env[Any, Any] = Monitor(env)
        if changed == "observations":
            outside = TransformObservation(env, lambda seen: seen / 2, env.observation_space)
        elif changed == "actions":
            outside = RescaleAction(env, np.float32(-10), np.float32(10))
        agent = agent_of("ReplayBuffer", DummyVecEnv([lambda: outside]))
        agent.learn(100)
        assert agent.replay_buffer.rewards[99]
        if changed:
            with pytest.raises(ValueError, match=f"has other {changed} than the environment stepped with"):
                relabel_replay_buffer(agent, env)
            return
        returned = agent.replay_buffer.rewards[:100].copy()
        assert relabel_replay_buffer(agent, env) == 100
        np.testing.assert_allclose(agent.replay_buffer.rewards[99], returned[99], rtol=1e-5)
        env.step(np.zeros(1, np.float32))  # by somebody else
        assert relabel_replay_buffer(agent, env) == 100


def test_nested_observations_are_relabelled_as_they_were_rewarded(in_process: SimpleNamespace) -> None:
    class Nested(Generous):
        observation_space: Any = gym.spaces.Dict(
            {"of": gym.spaces.Tuple([gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(3)])}
        )

        def _observation(self) -> Any:
            return {"of": (super()._observation(), 1)}

    def see(observation: Any) -> Any:
        return np.append(observation["of"][0], observation["of"][1]).astype(np.float32)

    with make(generous(Nested), wait=True, observation_transform=see) as env:
        rows, rewards = [env.reset(seed=0)[0]], []
        for _ in range(4):
            seen, reward, *_ = env.step(np.zeros(1, np.float32))
            rows.append(seen)
            rewards.append(reward)

        def stacked(of: list[Any]) -> Any:
            return {"of": (np.stack([row["of"][0] for row in of]), np.array([row["of"][1] for row in of]))}

        again = env.relabel(stacked(rows[:-1]), np.zeros((4, 1)), stacked(rows[1:]), np.zeros(4, bool))
        np.testing.assert_allclose(again, rewards, rtol=1e-5)


ONE_VERSION = PreferenceSettings(comparisons=10, initial_comparisons=10, rounds=1)
SMALL: dict[str, Any] = {"learning_starts": 100_000, "device": "cpu", "buffer_size": 2_000}


class Pushed(Walk):
    """With forces up to 3, as an agent scales them to 1."""

    action_space = gym.spaces.Box(-1.0, 3.0, (1,), np.float32)


class Large(Views):
    """With images that Stable-Baselines3's convolutions take."""

    observation_space = gym.spaces.Dict(
        Views.observation_space.spaces | {"pov": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)}
    )

    def _observation(self) -> Any:
        small = super()._observation()
        return small | {"pov": np.full((36, 36, 3), small["pov"][0, 0, 0])}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "copies"), [("vectors", 2), ("images", 1), ("memory", 1)])
def test_a_relabelled_buffer_holds_what_the_newest_version_says(
    in_process: SimpleNamespace, caplog: pytest.LogCaptureFixture, kind: str, copies: int
) -> None:
    """Steps that were rewarded by that version keep their rewards, so that observations and actions are taken as they were."""
    images: dict[str, Any] = {"observation_transform": lambda observation: observation["pov"]}
    given = images if kind == "images" else {}
    inner = [Large() if kind == "images" else Pushed((20,), numbered=False) for _ in range(copies)]
    caplog.set_level(logging.WARNING, "rlhf_ray")
    with make(inner[0], preferences=ONE_VERSION, **given) as env:
        vector = DummyVecEnv([lambda: env, *(lambda of=of: env.share(of) for of in inner[1:])])  # type: ignore[misc]
        if kind == "images":
            agent: Any = DQN("MultiInputPolicy", vector, **SMALL)
        else:
            agent = SAC("MlpPolicy", vector, **SMALL, **(MEMORY if kind == "memory" else {}))
        with pytest.raises(RuntimeError, match="no learned reward yet"):
            env.relabel(
                inner[0].observation_space.sample(), np.zeros(1), inner[0].observation_space.sample(), np.zeros(1)
            )
        agent.learn(2 * WINDOW + 200)
        before = agent.replay_buffer.rewards[: agent.replay_buffer.pos].copy()
        unlearned = env.status()["unlearned_steps"]
        assert unlearned == (before == 0.0).sum() >= WINDOW
        assert relabel_replay_buffer(agent, env) == before.size
        after = agent.replay_buffer.rewards[: agent.replay_buffer.pos]
        learned = before != 0.0
        assert learned.sum() > 100
        assert np.allclose(after[learned], before[learned], atol=1e-5)
        assert (after[~learned] != 0.0).mean() > 0.99
    first, last = (record.message for record in caplog.records if "0.0" in record.message)
    assert "relabel_replay_buffer(agent, env)" in first
    assert f"{unlearned} steps had reward 0.0" in last


def test_a_buffer_of_other_observations_is_refused(in_process: SimpleNamespace) -> None:
    with make() as env:
        agent = SAC("MlpPolicy", VecFrameStack(DummyVecEnv([lambda: env]), 2), **SMALL)
        with pytest.raises(ValueError, match=r"shape \(6,\), but the environment returns \(3,\)"):
            relabel_replay_buffer(agent, env)
