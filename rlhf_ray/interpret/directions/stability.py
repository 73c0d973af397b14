"""Stability of directions: are components found again with other seeds, and in halves of the data?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.directions.directions import Directions

SEEDS = 5
STABLE = 0.9
"""Mean |r|, over seeds and over halves, from which on a component counts as stable.

Between independent directions it grows with the number of components that one can choose from, and shrinks with the size of the
space: for 4 random directions in 4 dimensions it is about 0.7.
"""


@dataclass(frozen=True)
class Stability:
    """How well the components are found again, each beside its best partner (Hungarian matching)."""

    seeds: FloatArray  # mean |r| of the scores with those of fits with other seeds, ``[k]``
    halves: FloatArray  # mean |r| with those of fits to random halves of the episodes, ``[k]``

    @property
    def stable(self) -> BoolArray:
        """Which components are stable, ``[k]``."""
        return np.asarray(np.minimum(self.seeds, self.halves) >= STABLE)


def stability(
    basis: Directions,
    values: FloatArray,
    groups: Array | None = None,
    labels: Mapping[str, Array] | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
) -> Stability:
    """Fit the directions again to ``values`` ``[n, size]``, which they were fitted to, and match their components.

    Rows of one of the ``groups`` ``[n]``, for example an episode, stay in one half (None: single rows). There are ``seeds`` fits
    with other seeds, and as many to halves. ``labels``: as for `directions.fit`.
    """
    groups = np.arange(len(values)) if groups is None else np.asarray(groups)
    scores = basis.encode(values)
    count = max(len(basis), 1)
    matched: dict[str, list[FloatArray]] = {"seeds": [], "halves": []}
    for number in range(seeds):
        rng = np.random.default_rng([seed, number, 0x57AB])
        other = int(rng.integers(2**31))
        seeded = directions.fit(basis.kind, values, count, other, labels)
        matched["seeds"].append(_matched(scores, seeded.encode(values)))
        names = np.unique(groups)
        half = np.isin(groups, rng.permutation(names)[: max(1, len(names) // 2)])
        some = {name: np.asarray(concept)[half] for name, concept in (labels or {}).items()}
        again = directions.fit(basis.kind, values[half], count, other, some)
        matched["halves"].append(_matched(scores, again.encode(values)))
    return Stability(np.mean(matched["seeds"], 0), np.mean(matched["halves"], 0))


def _matched(scores: FloatArray, others: FloatArray) -> FloatArray:
    """Return the |r| of each column of ``scores`` ``[n, k]`` with its partner among ``others``; 0 without a partner."""
    first, second = (columns - columns.mean(0) for columns in (scores, others))
    if second.shape[1] < first.shape[1]:
        second = np.pad(second, [(0, 0), (0, first.shape[1] - second.shape[1])])
    return match(first.T, second.T) if first.shape[1] else np.zeros(0)


def match(first: FloatArray, second: FloatArray) -> FloatArray:
    """Pair directions ``[k, channels]`` and ``[m >= k, channels]`` so that they agree best: the pairs' absolute cosines ``[k]``."""
    lengths = [np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in (first, second)]
    cosines = np.abs((first / lengths[0]) @ (second / lengths[1]).T)
    rows, columns = linear_sum_assignment(-cosines)
    return np.asarray(cosines[rows, columns])
