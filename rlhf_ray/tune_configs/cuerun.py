"""CueRun: remember whether to jump the gates or to run under them; 400 comparisons, 300,000 environment steps.

An expert for `rlhf-ray interpret agent`: `rlhf-ray train cuerun --true-reward`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import LabellingSettings
from rlhf_ray.tune_configs import minirun

experiment = dataclasses.replace(
    minirun.experiment,
    environment="rlhf_ray/CueRun-v0",
    total_env_steps=300_000,
    labelling=LabellingSettings(
        instructions=(
            "Prefer the clip that gets further right. Rule: after a red sky, jump the gates; after blue, run under. "
            "Goal: the yellow column."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune cuerun`."""
    return minirun.search_space()
