"""Reacher-v5 (MuJoCo): bring the fingertip to the target; 700 comparisons, 500,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.half_cheetah`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    environment="Reacher-v5",
    total_env_steps=500_000,
    fragments=FragmentSettings(
        length=25,  # half an episode
        initial_env_steps=12_000,
        pool=400,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the arm whose tip is closer to the target; if both are there, the one that moves less. "
            "Goal: reach it and stay."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune reacher`: that of half_cheetah."""
    return half_cheetah.search_space()
