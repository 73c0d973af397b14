"""Ant (MuJoCo) with episodes that continue after a fall: walk; 700 comparisons, 1,000,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="rlhf_ray/AntFixed-v0",
    # A fallen robot stays down, and two fragments of it lying there are nearly ties. 50 steps: 2.5 s (`imitation`: 100).
    fragments={"length": 50, "initial_env_steps": 18_000, "start_share": 0.25},
    labelling={
        "instructions": "Prefer the ant that gets further to the right (watch the floor). Goal: walk forward. "
        "Worst: lying on its back."
    },
)
