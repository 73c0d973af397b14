"""Walker2d (MuJoCo) with episodes that continue after a fall: walk; 700 comparisons, 1,000,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.half_cheetah`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    environment="rlhf_ray/Walker2dFixed-v0",
    fragments=FragmentSettings(
        length=50,  # B-Pref; 0.4 s
        initial_env_steps=18_000,
        pool=400,
        # A fallen robot stays down, and two fragments of it lying there are nearly ties.
        start_share=0.25,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the walker that gets further to the right (watch the floor). Goal: walk forward. "
            "Worst: falling. It never gets up."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune walker2d`: that of half_cheetah."""
    return half_cheetah.search_space()
