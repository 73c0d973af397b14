"""Render the pages of this folder's templates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray import pages
from rlhf_ray.runs.report import summary


def render(template: str, **values: Any) -> str:
    """Render a template of this folder: see `rlhf_ray.pages.render`."""
    filters: dict[str, Callable[..., Any]] = {
        "number": summary.number,
        "setting": summary.setting,
        "interval": summary.interval,
    }
    return pages.render(Path(__file__).parent / template, filters, **values)
