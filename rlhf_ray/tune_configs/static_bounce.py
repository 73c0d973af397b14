"""StaticBounce: take coins and dodge an enemy, all of it in view; 300 comparisons, 300,000 environment steps.

For `rlhf-ray train static_bounce --true-reward` and studies of long horizons; needs no memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings
from rlhf_ray.tune_configs import minirun

experiment = dataclasses.replace(
    minirun.experiment,
    environment="rlhf_ray/StaticBounce-v0",
    total_env_steps=300_000,
    # Long enough for a way to the coin, and episodes have a fixed length.
    fragments=FragmentSettings(length=10, initial_env_steps=6_000, pool=400),
    preferences=PreferenceSettings(comparisons=300, rounds=30, schedule="constant", selection="disagreement"),
    reward_model=dataclasses.replace(minirun.experiment.reward_model, use_done=False),
    ppo=dataclasses.replace(minirun.experiment.ppo, memory="none", gamma=0.95),  # the coin is at most 14 steps away
    labelling=LabellingSettings(
        instructions=(
            "Prefer the clip in which white takes more coins and touches red less often. Goal: many coins. Worst: red."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune static_bounce`."""
    from ray import tune  # slow import that training does not need

    return minirun.search_space() | {
        "fragments.length": tune.choice([5, 10, 20])
    }  # a way to the coin has about 6 steps
