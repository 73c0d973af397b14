"""An environment with a learned reward, and somebody who acts in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers import HumanPreferencesEnv
from tests.made_up import Walk

FRAGMENTS = FragmentSettings(length=5, initial_env_steps=400, pool=200)
PREFERENCES = PreferenceSettings(comparisons=30, initial_comparisons=10, rounds=4)
VARIABLE = replace(PREFERENCES, allow_variable_horizon=True)
REWARD_MODEL = RewardModelSettings(hidden=(8,), batch_size=8, initial_updates=20, updates=5)


def make(env: gym.Env[Any, Any] | None = None, **arguments: Any) -> HumanPreferencesEnv:
    defaults: dict[str, Any] = {
        "total_env_steps": 4_000,
        "fragments": FRAGMENTS,
        "preferences": PREFERENCES,
        "reward_model": REWARD_MODEL,
    }
    return HumanPreferencesEnv(Walk((20,), numbered=False) if env is None else env, **(defaults | arguments))


def act(env: HumanPreferencesEnv, steps: int, seed: int = 0) -> list[Any]:
    """What ``steps`` steps with made-up actions gave, from a reset on."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    taken = []
    for _ in range(steps):
        taken.append(env.step(rng.uniform(-1, 1, 1).astype(np.float32)))
        if taken[-1][2] or taken[-1][3]:
            env.reset()
    return taken
