"""Pendulum-v1: swing a pendulum up and hold it there; 200 comparisons, 100,000 environment steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray import tune

from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.rllib import PreferencePPOConfig

experiment = Experiment(
    environment="Pendulum-v1",
    total_env_steps=100_000,
    # Short fragments say more per step about which moments are good; 10 did better than 25.
    fragments=FragmentSettings(length=10, initial_env_steps=1_600, pool=400),
    # A reward that is right early decides the outcome: most labels come early, and a round before almost every iteration.
    preferences=PreferenceSettings(
        comparisons=200, initial_comparisons=50, rounds=61, schedule="hyperbolic", steepness=6.0, selection="random"
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
)


def search_space(config: PreferencePPOConfig) -> PreferencePPOConfig:
    """What `rlhf-ray tune pendulum` varies."""
    config.fragments(length=tune.choice([10, 25]))
    config.reward_model(learning_rate=tune.loguniform(3e-4, 3e-3), updates=tune.choice([10, 20, 40]))
    config.training(gamma=tune.choice([0.95, 0.98]))
    return config
