"""Humanoid (MuJoCo) with episodes that continue after a fall: walk; 700 comparisons, 4,000,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="rlhf_ray/HumanoidFixed-v0",
    total_env_steps=4_000_000,  # `imitation`
    # A fallen robot stays down, and two fragments of it lying there are nearly ties.
    fragments={"length": 60, "initial_env_steps": 18_000, "start_share": 0.25},  # 0.9 s at 0.015 s per step
    labelling={
        "instructions": "Prefer the humanoid that stays on its feet longer; then the one further forward. Goal: walk. "
        "Worst: falling."
    },
)
