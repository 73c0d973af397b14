"""Hopper (MuJoCo) that goes on after a fall: hop forward; 700 comparisons, 1,000,000 environment steps.

All settings are those of `rlhf_ray.tune_configs.half_cheetah`, which names their sources, but for these.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    # Episodes of 1,000 steps, whatever happens: a fall that ends them would tell about the reward (Christiano, section 3.1).
    environment="rlhf_ray/HopperFixed-v0",
    fragments=FragmentSettings(
        length=50,  # B-Pref; 0.4 s
        initial_env_steps=18_000,  # enough for 350 clips that do not overlap: two for each of the first comparisons
        pool=400,
        # A hopper that has fallen does not get up, and two clips of it lying there are nearly ties.
        start_share=0.25,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the hopper that hops further to the right (watch the floor). The goal: hop forward. "
            "A fallen hopper never gets up: falling is worst."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune hopper` varies."""
    from ray import tune  # imports much that training has no use for

    return half_cheetah.search_space() | {
        "fragments.length": tune.choice([25, 50, 100]),  # Christiano's 15 to 60, B-Pref's 50, imitation's 100
    }
