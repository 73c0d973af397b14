"""CoinRun (procgen, easy levels): run and jump to the coin; 500 comparisons, 200,000 environment steps.

Too few steps to learn the game (procgen's paper takes 25 million): a first look at a pixel task of real size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray import tune

from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.rllib import PreferencePPOConfig

experiment = Experiment(
    environment="procgen/coinrun-easy",
    total_env_steps=200_000,
    fragments=FragmentSettings(length=25, initial_env_steps=4_000, pool=100),
    preferences=PreferenceSettings(
        comparisons=500,
        initial_comparisons=100,
        rounds=20,
        # An episode ends at the coin, at a hazard or at the time limit: its length tells, and there is no way around it.
        allow_variable_horizon=True,
    ),
    reward_model=RewardModelSettings(
        # The coin is reached in the last step, and only the state after it would show it: procgen does not draw that one.
        use_done=True,
        activation="leaky_relu",
        learning_rate=1e-3,
        initial_updates=100,
        updates=30,
    ),
    # Procgen's published PPO settings (Cobbe et al. 2020), with fewer environment copies for so few steps, and the small
    # network of the DQN paper: on a CPU the published one ("impala") takes several times as long.
    ppo=PPOSettings(
        network="nature",
        num_envs=16,
        rollout_length=256,
        minibatch_size=512,
        epochs=3,
        learning_rate=5e-4,
        gamma=0.999,
        entropy_coefficient=0.01,
    ),
)


def search_space(config: PreferencePPOConfig) -> PreferencePPOConfig:
    """What `rlhf-ray tune coinrun` varies."""
    config.fragments(length=tune.choice([10, 25, 50]))
    config.reward_model(learning_rate=tune.loguniform(3e-4, 3e-3))
    return config
