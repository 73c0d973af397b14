"""A changing reward and the replay buffers of Stable-Baselines3's off-policy agents."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.wrappers import relabel_replay_buffer
from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Walk
from tests.wrappers.test_single import Views
from tests.wrappers.walking import make

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
            memory = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
            agent = SAC("MlpPolicy", vector, **SMALL, **(memory if kind == "memory" else {}))
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
