"""Hopper (MuJoCo) with episodes that continue after a fall: hop forward; 700 comparisons, 1,000,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.half_cheetah`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    # Episodes always have 1,000 steps: ending them at a fall would leak reward information (Christiano, section 3.1).
    environment="rlhf_ray/HopperFixed-v0",
    fragments=FragmentSettings(
        length=50,  # B-Pref; 0.4 s
        initial_env_steps=18_000,  # enough for 350 fragments without overlap: two per initial comparison
        pool=400,
        # A fallen hopper stays down, and two fragments of it lying there are nearly ties.
        start_share=0.25,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the hopper that hops further to the right (watch the floor). Goal: hop forward. "
            "Worst: falling. It never gets up."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune hopper`."""
    from ray import tune  # slow import that training does not need

    return half_cheetah.search_space() | {
        "fragments.length": tune.choice([25, 50, 100]),  # Christiano's 15 to 60, B-Pref's 50, imitation's 100
    }
