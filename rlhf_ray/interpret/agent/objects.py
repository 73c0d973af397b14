"""Objects in frames: where they are, painting them over, and places of the background as large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.ndimage import distance_transform_edt

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.envs.batch import EnvBatch

AGENT = "agent"
"""The kind that is not hidden: it is the agent itself."""
SIDEWAYS = 100.0
"""How much farther than a column a row is: what stands on the ground is replaced by what is beside it."""
TRIES = 64
"""Places tried for a patch of the background."""
OBJECT = 0.12
"""Kinds of objects cover at most this share of the frames, on average. The rest is scenery; what moves is the agent."""


def masks_at(batch: EnvBatch, states: Sequence[bytes]) -> dict[str, BoolArray]:
    """Return the masks of all kinds of things at some states, ``[n, height, width]`` by name; empty if unknown."""
    parts: dict[str, list[BoolArray]] = {}
    for start in range(0, len(states), batch.n):
        some = list(states[start : start + batch.n])
        batch.restore(some + some[:1] * (batch.n - len(some)))
        for name, mask in batch.masks().items():
            parts.setdefault(name, []).append(mask[: len(some)])
    return {name: np.concatenate(masks) for name, masks in parts.items()}


def objects_in(masks: Mapping[str, BoolArray]) -> list[str]:
    """Return the kinds that can be hidden: neither the agent nor scenery; the largest first."""
    areas = {name: float(mask.mean()) for name, mask in masks.items() if name != AGENT}
    return sorted((name for name, area in areas.items() if 0 < area <= OBJECT), key=lambda name: -areas[name])


def repaint(frames: Array, masks: BoolArray, others: BoolArray | None = None) -> Array:
    """Paint objects over with the nearest pixels beside them, in the same row where there are any.

    Args:
        frames: ``[n, height, width, channels]``.
        masks: where the objects are, ``[n, height, width]``.
        others: where objects of other kinds are: they give no colours, so that no second one appears in the first one's place.
    """
    painted = frames.copy()
    for row, (frame, mask) in enumerate(zip(painted, masks, strict=True)):
        if mask.any() and not mask.all():
            full = mask if others is None or (mask | others[row]).all() else mask | others[row]
            rows, columns = distance_transform_edt(
                full, sampling=(SIDEWAYS, 1.0), return_distances=False, return_indices=True
            )
            frame[mask] = frame[rows[mask], columns[mask]]
    return painted


def patch_beside(masks: BoolArray, taken: BoolArray, rng: np.random.Generator) -> BoolArray:
    """Move each mask to a random place where nothing of interest is; empty where there is none.

    Args:
        masks: one kind of object, ``[n, height, width]``.
        taken: where any object is, ``[n, height, width]``.
        rng: draws the places.
    """
    moved = np.zeros_like(masks)
    for row, (mask, full) in enumerate(zip(masks, taken, strict=True)):
        cells = np.argwhere(mask)
        if not len(cells):
            continue
        cells = cells - cells.min(0)
        room = np.array(mask.shape) - cells.max(0)
        for _ in range(TRIES):
            place = cells + rng.integers(0, room)
            if not full[tuple(place.T)].any():
                moved[row][tuple(place.T)] = True
                break
    return moved
