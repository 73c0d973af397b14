"""The report's sections: one file per tool, in the order of the report."""

from __future__ import annotations

import importlib
from typing import cast

from rlhf_ray.interpret.reward.subject import Tool

NAMES: tuple[str, ...] = (
    "overview",
    "distances",
    "counterfactuals",
    "shortcuts",
    "incentive",
    "along",
    "attribution",
    "calibration",
    "heatmap",
    "examples",
    "visualisation",
    "inside",
    "preprocess",
)
"""The tools, in the order of the report: each is a module of this package with ``NAME``, ``TITLE``, ``unsuitable``, ``look``."""


def tool(name: str) -> Tool:
    """Import the tool ``name``."""
    return cast(Tool, importlib.import_module(f"{__name__}.{name}"))
