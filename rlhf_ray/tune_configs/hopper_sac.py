"""Hopper (MuJoCo) with SAC, episodes that continue after a fall: hop forward; 175 comparisons, 200,000 environment steps."""

from rlhf_ray import settings
from rlhf_ray.tune_configs import hopper

experiment = settings.Experiment(
    environment="rlhf_ray/HopperFixed-v0",
    agent="sac",
    total_env_steps=200_000,
    preferences=settings.PreferenceSettings(comparisons=175, initial_comparisons=0.25),
    fragments=settings.FragmentSettings(pool=400),
    reward_model=settings.RewardModelSettings(normalize_inputs="running", weight_decay=0.01),
    sac=settings.SACSettings(
        hidden=(128, 128),  # a gradient step costs half of one with (256, 256), which learns no more
        normalize_observations=True,
        rollout_length=250,
        updates_per_env_step=0.5,  # twice the steps with as many updates learns more than 1.0 in half of them
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
    ),
    labelling=hopper.experiment.labelling,
)
