"""Steps of the chain: one file each, with ``NAME``, ``TITLE``, ``AFTER``, ``unsuitable`` and ``run`` (see `ChainStep`)."""

from __future__ import annotations

import importlib
from typing import cast

from rlhf_ray.interpret.agent.chain import ChainStep

NAMES: tuple[str, ...] = (
    "recording",
    "world_model",
    "quality",
    "concepts",
    "bases",
    "clusters",
    "overlap",
    "behaviours",
    "dynamics",
    "attribution",
    "interventions",
    "counterfactuals",
    "search",
    "story",
    "panel",
)
"""The steps, in the order of the report; each comes after those that it reads."""


def step(name: str) -> ChainStep:
    """Import the step ``name``."""
    return cast(ChainStep, importlib.import_module(f"{__name__}.{name}"))
