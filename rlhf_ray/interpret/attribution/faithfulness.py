"""Faithfulness: whether an attribution says what happens when something is really changed.

Deletion and insertion against random orders (Samek et al. 2017; Petsiuk et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.attribution.question import Question
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.measure.statistics import spearman

ORDERS = 10
"""Random orders that a map's order is compared with."""
LEVELS = 8
"""Most steps of a curve."""


@dataclass(frozen=True)
class Curves:
    """How far an output moves as parts are deleted, the most important first, or inserted: mean absolute distances from it."""

    shares: FloatArray  # of the parts that are changed, [levels], from 0 to 1
    deletion: FloatArray  # when these parts get their typical values, [levels]
    insertion: FloatArray  # when only these parts are there, [levels]
    random_deletion: FloatArray  # the same in random orders, [orders, levels]
    random_insertion: FloatArray

    def _areas(self, name: str) -> FloatArray:
        return np.asarray(np.trapezoid(getattr(self, name), self.shares))

    @property
    def areas(self) -> dict[str, float]:
        """Areas under the curves, as shares of the whole effect, and the random orders' means.

        Deletion should be larger than random, insertion smaller.
        """
        top, names = float(self.deletion[-1]) or 1.0, ("deletion", "insertion", "random_deletion", "random_insertion")
        return {name: float(self._areas(name).mean()) / top for name in names}

    @property
    def intervals(self) -> dict[str, list[float] | None]:
        """95 % intervals of the random orders' mean areas."""
        top = float(self.deletion[-1]) or 1.0
        return {
            name: mean_interval((self._areas(name) / top).tolist()) for name in ("random_deletion", "random_insertion")
        }

    def to_json(self) -> dict[str, Any]:
        """Return areas, intervals, and whether the order is faithful."""
        return self.areas | {"intervals": self.intervals, "faithful": self.faithful}

    @property
    def faithful(self) -> bool:
        """Whether the map's order is better than every random order, in deletion and in insertion."""
        better = self._areas("deletion") > self._areas("random_deletion").max()
        return bool(better and self._areas("insertion") < self._areas("random_insertion").min())


def curves(
    question: Question, moments: Any, maps: Mapping[str, FloatArray], rng: np.random.Generator, name: str
) -> dict[str, Curves]:
    """Delete and insert parts of the input ``name`` in the order of maps' absolute sums, and in random orders, the same for all.

    Deleted parts get their typical values. ``maps`` are those of the input by method, ``[n, …]`` each.
    """
    actual, before = question.arrays(moments)[name], question.values(moments)
    masks = question.parts(name)[1]
    shape, flat = masks.shape[1:], masks.reshape(len(masks), -1)
    usual = np.broadcast_to(question.usual(name), actual.shape)
    shares = np.linspace(0.0, 1.0, min(LEVELS, len(masks)) + 1)
    counts = np.rint(shares * len(masks)).astype(int)

    def along(ranks: IntArray) -> tuple[FloatArray, FloatArray]:
        distances = np.zeros((2, len(counts)))
        for level, count in enumerate(counts):
            changed = ((ranks < count) @ flat).reshape(len(actual), *(1,) * (actual.ndim - 1 - len(shape)), *shape)
            for i, (here, there) in enumerate(((usual, actual), (actual, usual))):
                after = question.changed(moments, name, np.where(changed, here, there)[None])[0]
                distances[i, level] = np.abs(after - before).mean()
        return distances[0], distances[1]

    chance = [along(np.argsort(rng.random((len(actual), len(masks))), axis=1)) for _ in range(ORDERS)]
    by_chance = np.stack([a for a, _ in chance]), np.stack([b for _, b in chance])
    curves_by_method = {}
    for method, values in maps.items():
        sizes = np.abs(values.reshape(len(values), -1) @ flat.T.astype(np.float64))
        ranks = np.argsort(np.argsort(-sizes, axis=1, kind="stable"), axis=1)
        curves_by_method[method] = Curves(shares, *along(ranks), *by_chance)
    return curves_by_method


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Return Spearman's correlation of all elements, equal but for rounding; 0 if one of them is constant."""
    return spearman(np.round(one, 12), np.round(other, 12), 0.0)
