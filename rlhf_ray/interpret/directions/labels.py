"""Labels of concepts: yes or no, or numbers; NaN where a concept is not defined. Rows to fit to, and rows to test on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray

Labels: TypeAlias = Mapping[str, Array]
"""Labels ``[n]`` by concept: bool, or numbers with NaN for unknown."""

FEWEST = 2
"""Rows of each class that a concept needs."""


def yes_no(labels: Array) -> bool:
    """Return whether labels are all 0 or 1 where they are known."""
    known = _known(labels)
    return bool(np.isin(known, (0.0, 1.0)).all())


def usable(labels: Array) -> bool:
    """Return whether there is something to learn: both classes, or numbers that vary."""
    known = _known(labels)
    if yes_no(labels):
        return bool(min((known == 0).sum(), (known == 1).sum()) >= FEWEST)
    return len(known) >= 2 * FEWEST and float(known.std()) > 1e-9 and 0 < int(classes(known).sum()) < len(known)


def classes(labels: Array) -> BoolArray:
    """Return which rows are in the upper class: yes; numbers above the median."""
    numbers = np.asarray(labels, np.float64)
    if yes_no(labels):
        return np.asarray(numbers == 1)
    known = _known(labels)
    middle = float(np.median(known))
    if not (known > middle).any():  # most rows hold the largest number
        return np.asarray(numbers >= middle)
    return np.asarray(numbers > middle)


def rows(labels: Array) -> BoolArray:
    """Return where labels are known."""
    return np.isfinite(np.asarray(labels, np.float64))


def held_out(groups: IntArray, folds: int, rng: np.random.Generator) -> list[tuple[IntArray, IntArray]]:
    """Return, for each fold, rows to fit to and rows of other groups to test on; halves of the rows if there is one group."""
    names = rng.permutation(np.unique(groups))
    if len(names) < 2:
        half = len(groups) // 2
        return [(np.arange(half), np.arange(half, len(groups)))] if half else []
    splits: list[tuple[IntArray, IntArray]] = []
    for part in np.array_split(names, min(folds, len(names))):
        held = np.isin(groups, part)
        splits.append((np.flatnonzero(~held), np.flatnonzero(held)))
    return splits


def _known(labels: Array) -> FloatArray:
    numbers = np.asarray(labels, np.float64)
    known: FloatArray = numbers[np.isfinite(numbers)]
    return known
