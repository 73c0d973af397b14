"""Swimmer-v5 (MuJoCo): swim forward; 700 comparisons, 1,000,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.half_cheetah`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import half_cheetah

experiment = dataclasses.replace(
    half_cheetah.experiment,
    environment="Swimmer-v5",
    # A stroke pays off late: `imitation` tuned gamma to 0.999 on this task.
    ppo=dataclasses.replace(half_cheetah.experiment.ppo, gamma=0.999),
    fragments=FragmentSettings(
        length=50,  # 2 s at 0.04 s per step
        initial_env_steps=12_000,
        pool=400,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the swimmer that gets further to the right (watch the floor). Goal: swim forward. "
            "Worst: going backwards."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune swimmer`: that of half_cheetah."""
    return half_cheetah.search_space()
