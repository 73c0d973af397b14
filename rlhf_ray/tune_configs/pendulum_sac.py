"""Pendulum-v1 with SAC: swing a pendulum up and hold it there; 100 comparisons, 20,000 environment steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import SACSettings
from rlhf_ray.tune_configs import pendulum

experiment = dataclasses.replace(
    pendulum.experiment,
    agent="sac",
    # A fifth of PPO's steps: the replay buffer takes one gradient step for each.
    total_env_steps=20_000,
    preferences=dataclasses.replace(pendulum.experiment.preferences, comparisons=100, initial_comparisons="auto"),
    sac=SACSettings(
        hidden=(64, 64),  # a gradient step costs a quarter of one with (256, 256)
        num_envs=4,
        rollout_length=50,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        alpha_learning_rate=1e-3,
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune pendulum_sac`."""
    from ray import tune  # slow import that training does not need

    rates = tune.loguniform(3e-4, 3e-3)  # a factor of 3 around the preset
    return {
        "sac.actor_learning_rate": rates,
        "sac.critic_learning_rate": rates,
        "sac.gamma": tune.choice([0.98, 0.99]),
        "sac.updates_per_env_step": tune.choice([0.5, 1.0, 2.0]),
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),  # AdamW's usual 1e-3, a factor of 3 either way
        "fragments.length": tune.choice([10, 25]),  # short: more information per step; long: easier to compare
    }
