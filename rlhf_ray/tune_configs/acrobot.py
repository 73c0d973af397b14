"""AcrobotFixed: swing the tip up and keep it high, in episodes of 500 steps; 200 comparisons, 200,000 environment steps.

All other settings are those of `rlhf_ray.tune_configs.cartpole`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import cartpole

experiment = dataclasses.replace(
    cartpole.experiment,
    environment="rlhf_ray/AcrobotFixed-v0",
    fragments=FragmentSettings(
        length=25
    ),  # 5 s; the first actions are repeated, because independent ones hardly swing it
    ppo=dataclasses.replace(cartpole.experiment.ppo, gamma=0.99),
    labelling=LabellingSettings(
        instructions="Prefer the double pendulum whose tip is higher, for longer. Goal: swing the tip up above the line."
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune acrobot`: that of cartpole."""
    return cartpole.search_space()
