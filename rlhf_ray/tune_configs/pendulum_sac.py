"""Pendulum-v1 with SAC: swing a pendulum up and hold it there; 100 comparisons, 20,000 environment steps."""

from rlhf_ray.settings import SACSettings
from rlhf_ray.tune_configs import pendulum

experiment = pendulum.experiment.changed(
    agent="sac",
    # A fifth of PPO's steps: the replay buffer takes one gradient step for each.
    total_env_steps=20_000,
    preferences={"comparisons": 100, "initial_comparisons": 0.25},
    sac=SACSettings(
        hidden=(64, 64),  # a gradient step costs a quarter of one with (256, 256)
        num_envs=4,
        rollout_length=50,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        alpha_learning_rate=1e-3,
    ),
)
