"""Reacher-v5 (MuJoCo): bring the fingertip to the target; 700 comparisons, 500,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="Reacher-v5",
    total_env_steps=500_000,
    fragments={"length": 25},  # half an episode
    labelling={
        "instructions": "Prefer the arm whose tip is closer to the target; if both are there, the one that moves less. "
        "Goal: reach it and stay."
    },
)
