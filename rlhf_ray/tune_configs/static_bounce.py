"""StaticBounce: take coins and dodge an enemy, all of it in view; 300 comparisons, 300,000 environment steps.

For `rlhf-ray train static_bounce --true-reward` and studies of long horizons; needs no memory.
"""

from rlhf_ray.tune_configs import minirun

experiment = minirun.experiment.changed(
    environment="rlhf_ray/StaticBounce-v0",
    total_env_steps=300_000,
    # Long enough for a way to the coin, about 6 steps, and episodes have a fixed length.
    fragments={"length": 10, "initial_env_steps": 6_000, "pool": 400},
    preferences={"comparisons": 300, "allow_variable_horizon": False},
    reward_model={"use_done": False},
    ppo={"memory": "none", "gamma": 0.95},  # the coin is at most 14 steps away
    labelling={
        "instructions": "Prefer the clip in which white takes more coins and touches red less often. Goal: many coins. Worst: red."
    },
)
