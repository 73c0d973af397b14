"""Factors: a few directions of a layer's channels that explain its activations or attributions, by NMF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.directions.stability import match
from rlhf_ray.interpret.directions.weights import nonnegative_factors, nonnegative_weights, some_of


@dataclass(frozen=True)
class Factors:
    """A few directions in the channels of a layer, for activations ``[n, channels, *positions]``.

    Channels are moved last before anything else, so that they never mix with positions.

    Attributes:
        components: ``[factors, channels]``; signed: ``[factors, 2 * channels]``: positive parts, then negative parts.
        signed: whether positive and negative parts are separate channels (attributions).
        explained: share of the sum of squares that the factors reproduce, of the data they were fitted to.
    """

    components: FloatArray
    signed: bool
    explained: float

    def __len__(self) -> int:
        return len(self.components)

    @property
    def directions(self) -> FloatArray:
        """Directions ``[factors, channels]`` of unit length; signed: positive minus negative part."""
        joined = self._joined(self.components)
        lengths = np.linalg.norm(joined, axis=1, keepdims=True)
        return np.asarray(joined / np.where(lengths > 0, lengths, 1.0))

    def encode(self, values: Array) -> FloatArray:
        """Return how much of each factor is in ``values`` ``[n, channels, *positions]``: ``[n, factors, *positions]``."""
        weights = nonnegative_weights(_rows(values, self.signed), self.components)
        return _channels_second(weights, values)

    def decode(self, weights: Array) -> FloatArray:
        """Return the values ``[n, channels, *positions]`` with ``weights`` ``[n, factors, *positions]`` of the factors."""
        return _channels_second(self._joined(_rows(weights, False) @ self.components), weights)

    def _joined(self, rows: FloatArray) -> FloatArray:
        """Subtract the negative parts of signed rows from the positive ones."""
        if not self.signed:
            return rows
        positive, negative = np.split(rows, 2, axis=1)
        return np.asarray(positive - negative)


def fit(values: Array, count: int, seed: int = 0, signed: bool = False) -> Factors:
    """Fit factors.

    Args:
        values: activations or attributions ``[n, channels, *positions]``.
        count: number of factors; fewer if there are fewer channels or rows.
        seed: draws rows, and NMF's start.
        signed: separate positive and negative parts, each a channel of its own.

    Raises:
        ValueError: not signed, and a value is below 0.
    """
    components, explained = nonnegative_factors(some_of(_rows(values, signed), seed), count, seed)
    return Factors(components, signed, explained)


def stability(values: Array, factors: Factors, seeds: Sequence[int], share: float = 0.5) -> FloatArray:
    """Fit the factors again to random halves of the data, and return how well each is found again.

    Args:
        values: what ``factors`` were fitted to.
        factors: the factors.
        seeds: one for each further fit.
        share: share of the data in each.

    Returns:
        ``[factors]``: mean absolute cosine to the best partner, in [0, 1].
    """
    cosines = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 0xFAC])
        some = rng.choice(len(values), max(2, round(share * len(values))), replace=False)
        again = fit(values[np.sort(some)], len(factors), seed, factors.signed)
        same = len(again) >= len(factors)
        cosines.append(match(factors.components, again.components) if same else np.zeros(len(factors)))
    return np.asarray(np.mean(cosines, 0))


def _rows(values: Array, signed: bool) -> FloatArray:
    """Return one row per step and position, ``[n * positions, channels]`` float64; signed: positive, then negative parts."""
    rows = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]).astype(np.float64)
    return np.concatenate([np.maximum(rows, 0.0), np.maximum(-rows, 0.0)], 1) if signed else rows


def _channels_second(rows: FloatArray, like: Array) -> FloatArray:
    """Undo `_rows`."""
    return np.moveaxis(rows.reshape(len(like), *like.shape[2:], -1), -1, 1)
