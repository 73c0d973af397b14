"""Hopper (MuJoCo) with episodes that continue after a fall: hop forward; 700 comparisons, 1,000,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="rlhf_ray/HopperFixed-v0",
    # Episodes always have 1,000 steps: ending them at a fall would leak reward information (Christiano, section 3.1). A fallen
    # hopper stays down, and two fragments of it lying there are nearly ties. 50 steps: B-Pref, 0.4 s.
    fragments={"length": 50, "initial_env_steps": 18_000, "start_share": 0.25},
    labelling={
        "instructions": "Prefer the hopper that hops further to the right (watch the floor). Goal: hop forward. "
        "Worst: falling. It never gets up."
    },
)
