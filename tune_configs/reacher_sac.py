"""Reacher-v5 (MuJoCo) with SAC: bring the fingertip to the target; 200 comparisons, 20,000 environment steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import SACSettings
from rlhf_ray.tune_configs import pendulum_sac, reacher

experiment = dataclasses.replace(
    reacher.experiment,
    agent="sac",
    total_env_steps=20_000,
    fragments=dataclasses.replace(reacher.experiment.fragments, initial_env_steps=2_000),
    preferences=dataclasses.replace(reacher.experiment.preferences, comparisons=200, rounds=40),
    sac=SACSettings(
        hidden=(64, 64),  # a gradient step costs a quarter of one with (256, 256)
        num_envs=4,
        rollout_length=50,  # one episode
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        alpha_learning_rate=1e-3,
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune reacher_sac`: that of pendulum_sac."""
    return pendulum_sac.search_space()
