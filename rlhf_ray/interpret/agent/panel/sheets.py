"""Sheets: frames as WebP images of many tiles, loaded by the page when it needs them."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rlhf_ray.data.arrays import Array

SIDE = 1600
"""Sides of a sheet come close to this, in pixels: small enough to load and decode within a frame."""

QUALITIES = (None, 90, 75, 50, 30, 10)
"""WebP qualities, tried in this order until the frames fit; None is lossless."""

LOSSLESS_EFFORT = 20
"""WebP "quality" of lossless images, which is the compression effort, 0 to 100."""


@dataclass(frozen=True)
class SheetPlan:
    """How ``groups`` groups (samples, or sides of a pair) of ``steps`` tiles lie in sheets.

    Attributes:
        height, width: of a tile.
        steps: tiles of each group.
        columns, rows: tiles of each sheet.
        together: groups in each sheet.
    """

    height: int
    width: int
    steps: int
    columns: int
    rows: int
    together: int


def plan_for(groups: int, steps: int, height: int, width: int) -> SheetPlan:
    """Return the plan for groups of ``steps`` tiles of ``height`` x ``width``."""
    columns = max(1, min(steps, SIDE // width))
    rows_of_one = math.ceil(steps / columns)
    together = max(1, min(groups, SIDE // (rows_of_one * height)))
    return SheetPlan(height, width, steps, columns, math.ceil(together * steps / columns), together)


def rgb(frames: Array) -> Array:
    """Return frames ``[…, h, w, c]`` of any number of channels as uint8 ``[…, h, w, 3]``: of a stack, the newest image."""
    frames = np.asarray(frames)
    if frames.dtype != np.uint8:
        frames = np.clip(np.round(frames), 0, 255).astype(np.uint8)
    channels = frames.shape[-1]
    if channels % 3 == 0:
        return frames[..., -3:]
    return np.repeat(frames[..., -1:], 3, -1)


def sheet_image(plan: SheetPlan, groups: Array) -> Image.Image:
    """Return the sheet of ``groups``, ``[groups, steps, h, w, c]``."""
    tiles = np.zeros((plan.rows * plan.columns, plan.height, plan.width, 3), np.uint8)
    tiles[: len(groups) * plan.steps] = rgb(groups).reshape(-1, plan.height, plan.width, 3)
    grid = tiles.reshape(plan.rows, plan.columns, plan.height, plan.width, 3).swapaxes(1, 2)
    return Image.fromarray(grid.reshape(plan.rows * plan.height, plan.columns * plan.width, 3))


def encoded(image: Image.Image, quality: int | None) -> bytes:
    """Return ``image`` as WebP."""
    sink = io.BytesIO()
    if quality is None:
        image.save(sink, "WEBP", lossless=True, quality=LOSSLESS_EFFORT, method=2)
    else:
        image.save(sink, "WEBP", quality=quality, method=2)
    return sink.getvalue()


def write_sheets(observations: Array, folder: Path, prefix: str, budget: int) -> dict[str, Any]:
    """Write the sheets of ``observations`` ``[groups, steps, h, w, c]`` in at most about ``budget`` bytes.

    Returns:
        the plan and the quality (None: lossless), for the page.
    """
    groups, steps, height, width = observations.shape[:4]
    plan = plan_for(groups, steps, height, width)
    starts = range(0, groups, plan.together)
    trial = sheet_image(plan, observations[: plan.together])
    most = 0.9 * budget / len(starts)
    quality = next((one for one in QUALITIES[:-1] if len(encoded(trial, one)) <= most), QUALITIES[-1])
    for number, start in enumerate(starts):
        image = sheet_image(plan, observations[start : start + plan.together])
        (folder / f"{prefix}{number}.webp").write_bytes(encoded(image, quality))
    return {"prefix": prefix, "quality": quality, **plan.__dict__}
