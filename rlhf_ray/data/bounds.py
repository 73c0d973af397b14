"""Bounds that are only formal: so wide that nobody can mean them, such as ±1e6 or ±the largest float32.

Scaled by such bounds, all values look the same.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray

WIDEST = 255.0
"""Widest range of a number in an observation that is taken at its word: a byte's. (A wider one may be meant, too: what is seen
tells.)"""

WIDEST_SCALED = 1e5
"""Widest range that is taken at its word where nothing else tells the scale: of actions and of pixels."""


def formal_numbers(space: gym.spaces.Box, widest: float = WIDEST) -> BoolArray:
    """Return which numbers of a Box have formal bounds, ``[size]``: both finite, and further apart than ``widest``."""
    finite = np.isfinite(space.low) & np.isfinite(space.high)
    return np.asarray(finite & unscaled(space.low, space.high, widest)).reshape(-1)


def unscaled(low: Array, high: Array, widest: float = WIDEST) -> BoolArray:
    """Return which numbers have no range to scale by: a bound is infinite, or both are formal."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        without: BoolArray = ~(np.isfinite(low) & np.isfinite(high)) | (high - low > widest)
    return without


def without_formal(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an action space with infinite in place of formal bounds: itself if it has none."""
    if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
        return space
    formal = formal_numbers(space, WIDEST_SCALED).reshape(space.shape)
    if not formal.any():
        return space
    low, high = np.where(formal, -np.inf, space.low), np.where(formal, np.inf, space.high)
    kind: Any = np.dtype(space.dtype).type
    return gym.spaces.Box(low.astype(kind), high.astype(kind), dtype=kind)


def within(space: gym.spaces.Box) -> tuple[Array, Array]:
    """Return the bounds of a Box as float32, such that a float32 between them is in the Box."""
    if space.dtype == np.float32:
        return space.low, space.high
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    return low, np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)


def fitted(actions: Any, space: gym.Space[Any]) -> Any:
    """Return actions for an environment, one or a batch, as its space declares them: in its dtype and, if converted, its bounds.

    Others than arrays of numbers, and those that are no numbers of the space, stay as they are.
    """
    dtype = getattr(space, "dtype", None)
    if dtype is None or not isinstance(actions, np.ndarray | np.generic) or actions.dtype == dtype:
        return actions
    if isinstance(space, gym.spaces.Box) and np.dtype(dtype).kind == "f" and actions.dtype.kind in "iuf":
        limits = np.finfo(dtype)
        return np.clip(actions, np.maximum(space.low, limits.min), np.minimum(space.high, limits.max)).astype(dtype)
    return actions.astype(dtype) if np.dtype(dtype).kind in "iu" and actions.dtype.kind in "biu" else actions


def in_words(space: gym.Space[Any]) -> str | None:
    """Say which numbers of observations have formal bounds, and what comes of it; None if none have."""
    if not isinstance(space, gym.spaces.Box) or not (formal := formal_numbers(space)).any():
        return None
    which = "" if formal.all() else f" of {_listed(np.flatnonzero(formal))}"
    low, high = (np.asarray(bound, np.float64).reshape(-1)[formal] for bound in (space.low, space.high))
    return (
        f"the bounds{which} of the observations ({low.min():.3g} to {high.max():.3g}) are too wide to scale by; the policy scales "
        "these numbers by what it has seen of them"
    )


def _listed(index: Array) -> str:
    """Name numbers: "numbers 0, 2-5"."""
    parts = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)
    names = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return f"number{'s' if len(index) > 1 else ''} {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}"
