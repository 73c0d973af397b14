"""Environments that change what belongs to the whole process: training must go on as if they had not."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SACSettings,
)
from tests.whole_runs import running


def seed_everything(env: gym.Env[Any, Any]) -> None:
    """Seed every generator in reach."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    env.action_space.seed(0)


def set_defaults(env: gym.Env[Any, Any]) -> None:
    """Set the process's defaults, and rely on them."""
    if not hasattr(env, "weights"):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        np.seterr(all="raise")
        torch.set_num_threads(2)
        os.chdir("/")
        env.weights = torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
    assert env.weights(torch.zeros(1)).dtype == torch.float64  # type: ignore[attr-defined]
    assert not torch.is_grad_enabled()
    assert np.geterr()["under"] == "raise"
    assert os.getcwd() == "/"


MEDDLING: dict[str, Callable[[gym.Env[Any, Any]], Any]] = {
    "Not": lambda env: None,
    "Seeds": seed_everything,
    "Defaults": set_defaults,
}


class Meddler(gym.Env[Any, Any]):
    """A point to be moved, which meddles in its constructor, in each reset and in each step."""

    def __init__(self, how: str = "Not", render_mode: str | None = None):
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.meddle = MEDDLING[how]
        self.meddle(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.meddle(self)
        self.at = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.meddle(self)
        self.at = np.clip(self.at + 0.1 * action, -2.0, 2.0).astype(np.float32)
        return self.at, -float(abs(self.at).sum()), False, False, {}


meddler: Any = Meddler
for how in MEDDLING:
    gym.register(f"tests/Meddles{how}-v0", meddler, max_episode_steps=20, kwargs={"how": how})

AGENTS: dict[str, dict[str, Any]] = {
    "arrays": {"ppo": PPOSettings(num_envs=2, rollout_length=40, minibatch_size=40, epochs=2, hidden=(8,))},
    "episodes": {
        "ppo": PPOSettings(
            num_envs=2, rollout_length=20, minibatch_size=20, epochs=2, hidden=(8,), memory="gru", memory_units=4
        )
    },
    "sac": {
        "agent": "sac",
        "sac": SACSettings(num_envs=2, rollout_length=20, learning_starts=40, batch_size=16, hidden=(8,)),
    },
}
"""PPO as fast as it gets, PPO with RLlib's own env runner and gradient steps, and SAC."""


def short(agent: str, environment: str) -> Any:
    """The configuration of a short training."""
    experiment = Experiment(
        environment=environment,
        total_env_steps=400,
        fragments=FragmentSettings(length=5, initial_env_steps=80, pool=40),
        preferences=PreferenceSettings(comparisons=20, initial_comparisons=10, rounds=2),
        reward_model=RewardModelSettings(hidden=(8,), ensemble_size=2, dropout=0.2, initial_updates=3, updates=2),
        **AGENTS[agent],
    )
    return preference_config(experiment)


def trained(agent: str, how: str) -> dict[str, Any]:
    """The weights of agent and reward model after a short training."""
    with running(short(agent, f"tests/Meddles{how}-v0").build_algo()) as algorithm:
        while not algorithm.finished:
            algorithm.train()
        weights = algorithm.learner_group.get_weights()
        return {f"{module}.{name}": value for module in weights for name, value in weights[module].items()}


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_training_does_not_depend_on_what_an_environment_does_to_the_process(agent: str) -> None:
    expected = trained(agent, "Not")
    for how in MEDDLING:
        found = trained(agent, how)
        assert all(np.array_equal(found[name], value) for name, value in expected.items()), how
