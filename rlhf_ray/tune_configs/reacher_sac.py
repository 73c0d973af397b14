"""Reacher-v5 (MuJoCo) with SAC: bring the fingertip to the target; 200 comparisons, 20,000 environment steps."""

from rlhf_ray import settings
from rlhf_ray.tune_configs import reacher

experiment = settings.Experiment(
    environment="Reacher-v5",
    agent="sac",
    # A fifth of the steps that PPO takes to learn as much: the replay buffer takes one gradient step for each.
    total_env_steps=20_000,
    fragments=settings.FragmentSettings(initial_env_steps=4_000, pool=400),  # 80 episodes to ask about first
    preferences=settings.PreferenceSettings(comparisons=200, initial_comparisons=0.25),
    reward_model=settings.RewardModelSettings(normalize_inputs="running", weight_decay=0.01),
    sac=settings.SACSettings(
        hidden=(64, 64),  # a gradient step costs a quarter of one with (256, 256)
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        alpha_learning_rate=1e-3,
    ),
    labelling=reacher.experiment.labelling,
)
