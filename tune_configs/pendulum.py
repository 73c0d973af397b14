"""Pendulum-v1: swing a pendulum up and hold it there; 200 comparisons, 100,000 environment steps."""

from __future__ import annotations

from typing import Any

from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    LabellingSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
)

experiment = Experiment(
    environment="Pendulum-v1",
    total_env_steps=100_000,
    # Short fragments say more per step about which moments are good; 10 did better than 25.
    fragments=FragmentSettings(length=10, initial_env_steps=1_600, pool=400),
    # A reward that is right early decides the outcome: most labels come early, and a round before almost every iteration.
    preferences=PreferenceSettings(
        comparisons=200, rounds=61, schedule="hyperbolic", steepness=6.0, selection="random"
    ),
    reward_model=RewardModelSettings(
        hidden=(64, 64), activation="leaky_relu", learning_rate=2e-3, initial_updates=200, updates=20
    ),
    ppo=PPOSettings(
        num_envs=8,
        rollout_length=200,  # one episode
        minibatch_size=128,
        epochs=10,
        learning_rate=1e-3,
        final_learning_rate=0.0,  # lets the policy settle at the end
        gamma=0.98,
        gae_lambda=0.9,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the pendulum nearer to upright; if both are upright, the stiller one. "
            "The goal: swing up and hold still."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune pendulum` varies."""
    from ray import tune  # imports much that training has no use for

    return {
        "ppo.gamma": tune.choice([0.95, 0.98]),  # of one episode of 200 steps, what lies 20 or 50 steps ahead counts
        "ppo.learning_rate": tune.loguniform(
            3e-4, 3e-3
        ),  # what decides most in PPO; three times either side of the preset's
        "ppo.entropy_coefficient": tune.uniform(0.0, 0.02),
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),  # AdamW's usual 1e-3, three times either side
        "reward_model.updates": tune.choice([10, 20, 40]),  # fits that are too long overfit few labels
        "fragments.length": tune.choice([10, 25]),  # short ones say more per step, long ones are easier to tell apart
    }
