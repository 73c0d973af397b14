"""Humanoid (MuJoCo) with episodes that continue after a fall: walk; 700 comparisons, 4,000,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.half_cheetah`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    environment="rlhf_ray/HumanoidFixed-v0",
    total_env_steps=4_000_000,  # `imitation`
    fragments=FragmentSettings(
        length=60,  # 0.9 s at 0.015 s per step
        initial_env_steps=18_000,
        pool=400,
        # A fallen robot stays down, and two fragments of it lying there are nearly ties.
        start_share=0.25,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the humanoid that stays on its feet longer; then the one further forward. Goal: walk. "
            "Worst: falling."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune humanoid`: that of half_cheetah."""
    return half_cheetah.search_space()
