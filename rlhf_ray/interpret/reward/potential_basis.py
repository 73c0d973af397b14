"""Features of observations whose weighted sums are potentials: what an unknown shaping of a reward is fitted with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.reward.functions.potentials import TabularPotential

MOST = 160
"""Most features. A smooth potential of three numbers is fitted to about 1 % by them."""
STEPS_EACH = 10
"""Steps for each feature, at least: a fit of k weights to n steps takes a share of k / n of whatever is no shaping, too."""
PRODUCTS = 12
"""Most numbers whose products are features."""
CODES, BLOCKS = 8, 4
"""Most object codes of a grid that are located; rows and columns of blocks that an image is averaged over."""
UNIT = 1e-3
"""How far from 1 the length of cosine and sine may be."""


@dataclass(frozen=True)
class Basis:
    """Features of observations, the same for states and next states.

    Attributes:
        kind: what observations are: "table" (few different ones), "feature", "cell" or "patch".
        known: the different observations of a table.
        shape: rows and columns of a grid.
        codes: a grid's codes that are located.
        angles: pairs of numbers that are cosine and sine.
        mean, spread: standardise the numbers; those that don't vary have the spread 0 and are left out.
        directions, phases: of the cosines.
    """

    kind: str
    known: Array
    shape: tuple[int, int]
    codes: FloatArray
    angles: tuple[tuple[int, int], ...]
    mean: FloatArray
    spread: FloatArray
    directions: FloatArray
    phases: FloatArray

    def __call__(self, observations: Array) -> FloatArray:
        """Return the features of each observation, ``[n, k]``."""
        if self.kind == "table":
            return np.eye(len(self.known))[TabularPotential(np.zeros(len(self.known)), self.known).states(observations)]
        varies = self.spread > 0
        numbers = (self.numbers(observations) - self.mean)[:, varies] / self.spread[varies]
        parts = [numbers, np.cos(numbers @ self.directions + self.phases)]
        if numbers.shape[1] <= PRODUCTS:
            rows, columns = np.triu_indices(numbers.shape[1])
            parts.insert(1, numbers[:, rows] * numbers[:, columns])
        return np.concatenate(parts, 1)

    def numbers(self, observations: Array) -> FloatArray:
        """Return the numbers that features are made of, ``[n, m]``."""
        if self.kind == "patch":
            return _blocks(observations)
        flat = np.asarray(observations, np.float64).reshape(len(observations), -1)
        if self.kind == "cell":
            return _places(flat, self.shape, self.codes)
        angles = [np.arctan2(flat[:, sine], flat[:, cosine]) for cosine, sine in self.angles]
        return np.concatenate(
            [flat, *([angle[:, None], abs(angle)[:, None]][i] for angle in angles for i in (0, 1))], 1
        )


def basis_of(
    observations: Array, space: gym.Space[Any], regions: Regions | None, rng: np.random.Generator, most: int = MOST
) -> Basis | None:
    """Make the basis for ``observations``, states and next states of all steps; None if they are too few for any feature."""
    most = min(most, len(observations) // 2 // STEPS_EACH)
    flat = np.asarray(observations, np.float64).reshape(len(observations), -1)
    different = np.unique(flat, axis=0, return_index=True)[1]
    nothing: FloatArray = np.zeros(0)
    empty = Basis("table", observations[np.sort(different)], (0, 0), nothing, (), nothing, nothing, nothing, nothing)
    if len(different) <= most:
        return empty
    if isinstance(space, gym.spaces.Discrete):
        return None
    kind = "feature" if regions is None else regions.kind
    codes, shape = nothing, (0, 0)
    angles: tuple[tuple[int, int], ...] = ()
    if kind == "cell" and regions is not None:
        shape = regions.layout
        codes = _codes(flat)
    elif kind == "feature":
        angles = tuple(
            (i, j)
            for i in range(min(flat.shape[1], 20))
            for j in range(i + 1, min(flat.shape[1], 20))
            if np.allclose(np.hypot(flat[:, i], flat[:, j]), 1, atol=UNIT)
            and np.ptp(flat[:, i]) > 0 < np.ptp(flat[:, j])
        )
    rough = Basis(kind, observations[:0], shape, codes, angles, nothing, nothing, nothing, nothing)
    numbers = rough.numbers(observations)
    mean, spread = numbers.mean(0), numbers.std(0)
    spread = np.where(spread > 1e-9 * np.maximum(1.0, np.abs(mean)), spread, 0.0)
    width = int((spread > 0).sum())
    own = width + width * (width + 1) // 2 * (width <= PRODUCTS)
    if own > most:
        return None
    count = most - own
    bandwidths = np.where(np.arange(count) % 2, 1.0, 2.5) / np.sqrt(max(width, 1))
    directions = rng.normal(size=(width, count)) * bandwidths
    return Basis(
        kind, observations[:0], shape, codes, angles, mean, spread, directions, rng.uniform(0, 2 * np.pi, count)
    )


def _codes(flat: FloatArray) -> FloatArray:
    """Return the codes that not all observations show at the same places, the rarest first: objects."""
    codes, counts = np.unique(flat, return_counts=True)
    moving = [code for code in codes[np.argsort(counts)] if ((flat == code) != (flat[0] == code)).any()]
    return np.array(moving[:CODES])


def _places(flat: FloatArray, shape: tuple[int, int], codes: FloatArray) -> FloatArray:
    """Return number, mean row and mean column of each code, and the distances of the codes' places in rows plus columns."""
    row, column = np.divmod(np.arange(flat.shape[1]), max(1, shape[1]))
    found, places = [], []
    for code in codes:
        there = flat == code
        count = there.sum(1)
        middle = [there @ axis / np.maximum(count, 1) for axis in (row, column)]
        places.append(middle)
        found += [count.astype(np.float64), *middle]
    for i in range(min(len(places), 3)):
        for j in range(i):
            found.append(abs(places[i][0] - places[j][0]) + abs(places[i][1] - places[j][1]))
    return np.stack(found, 1) if found else np.zeros((len(flat), 0))


def _blocks(images: Array) -> FloatArray:
    """Return the mean of each block and channel of images."""
    height, width, channels = images.shape[1:]
    rows, columns = (np.array_split(np.arange(size), min(size, BLOCKS)) for size in (height, width))
    means = [
        images[:, r[0] : r[-1] + 1, c[0] : c[-1] + 1].mean((1, 2), dtype=np.float64) for r in rows for c in columns
    ]
    return np.concatenate(means, 1).reshape(len(images), -1)[:, : channels * len(means)]
