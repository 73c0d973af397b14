"""Walker2d (MuJoCo) with episodes that continue after a fall: walk; 700 comparisons, 1,000,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="rlhf_ray/Walker2dFixed-v0",
    # A fallen robot stays down, and two fragments of it lying there are nearly ties.
    fragments={"length": 50, "initial_env_steps": 18_000, "start_share": 0.25},  # B-Pref; 0.4 s
    labelling={
        "instructions": "Prefer the walker that gets further to the right (watch the floor). Goal: walk forward. "
        "Worst: falling. It never gets up."
    },
)
