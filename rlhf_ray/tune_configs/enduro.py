"""Enduro (Atari) without its dashboard: 5,500 comparisons, 10,000,000 environment steps.

All other settings, with their sources, are in `rlhf_ray.tune_configs.pong`: Christiano et al. 2017 use the same for all games.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import LabellingSettings
from rlhf_ray.tune_configs import pong

experiment = dataclasses.replace(
    pong.experiment,
    environment="rlhf_ray/Enduro-v0",  # the distance, the day and the cars left to pass are blacked out
    labelling=LabellingSettings(
        instructions=(
            "Prefer the clip where the car passes more cars, and the one that drives faster if there are none. "
            "Goal: overtake. Worst: a crash."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune enduro`: that of pong."""
    return pong.search_space()
