"""Faithfulness: whether an attribution says what happens when something is really changed.

Deletion and insertion against random orders (Samek et al. 2017; Petsiuk et al. 2018); agreement with levels that were edited;
concentration on objects, trained against untrained (Adebayo et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.attribution.method import Method, attribute
from rlhf_ray.interpret.attribution.question import Question
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.measure.statistics import spearman

ORDERS = 10
"""Random orders that a map's order is compared with."""
LEVELS = 8
"""Most steps of a curve."""


@dataclass(frozen=True)
class Curves:
    """How far an output moves as parts are deleted, the most important first, or inserted.

    Attributes:
        shares: of the parts that are changed, ``[levels]``, from 0 to 1.
        deletion: mean absolute change when these parts get their typical values, ``[levels]``.
        insertion: mean absolute distance from the output when only these parts are there, ``[levels]``.
        random_deletion, random_insertion: the same in random orders, ``[orders, levels]``.
    """

    shares: FloatArray
    deletion: FloatArray
    insertion: FloatArray
    random_deletion: FloatArray
    random_insertion: FloatArray

    @property
    def areas(self) -> dict[str, float]:
        """Areas under the curves, as shares of the whole effect, and the random orders' means.

        Deletion should be larger than random, insertion smaller.
        """
        top = float(self.deletion[-1]) or 1.0
        return {
            "deletion": _area(self.shares, self.deletion) / top,
            "insertion": _area(self.shares, self.insertion) / top,
            "random_deletion": float(np.mean([_area(self.shares, curve) for curve in self.random_deletion])) / top,
            "random_insertion": float(np.mean([_area(self.shares, curve) for curve in self.random_insertion])) / top,
        }

    @property
    def intervals(self) -> dict[str, list[float] | None]:
        """95 % intervals of the random orders' mean areas."""
        top = float(self.deletion[-1]) or 1.0
        both = {"random_deletion": self.random_deletion, "random_insertion": self.random_insertion}
        return {
            name: mean_interval([_area(self.shares, curve) / top for curve in curves]) for name, curves in both.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return areas, intervals, and whether the order is faithful."""
        return self.areas | {"intervals": self.intervals, "faithful": self.faithful}

    @property
    def faithful(self) -> bool:
        """Whether the map's order is better than every random order, in deletion and in insertion."""
        worst = max(_area(self.shares, curve) for curve in self.random_deletion)
        least = min(_area(self.shares, curve) for curve in self.random_insertion)
        return _area(self.shares, self.deletion) > worst and _area(self.shares, self.insertion) < least


def curves(
    question: Question,
    moments: Any,
    maps: Mapping[str, FloatArray],
    rng: np.random.Generator,
    name: str,
    orders: int = ORDERS,
) -> dict[str, Curves]:
    """Delete and insert parts of an input in the order of maps' absolute sums, and in random orders, the same for all maps.

    Deleted parts get their typical values.

    Args:
        question: whose input it is.
        moments: ``n`` moments.
        maps: maps of the input by method, ``[n, …]`` each.
        rng: draws the random orders.
        name: the input.
        orders: number of random orders.
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

    chance = [along(np.argsort(rng.random((len(actual), len(masks))), axis=1)) for _ in range(orders)]
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


@dataclass(frozen=True)
class Agrees:
    """How well one kind of effect predicts another, over all moments where both are known.

    Attributes:
        count: of pairs.
        sign: share with the same sign, among the larger half of real effects.
        interval: 95 % interval of that share.
        rank: rank correlation.
    """

    count: int
    sign: float
    interval: list[float] | None
    rank: float


def agreement(predicted: FloatArray, real: FloatArray) -> Agrees | None:
    """Compare predicted with real effects ``[n]``; None if fewer than two pairs are known."""
    known = np.isfinite(predicted) & np.isfinite(real)
    expected, happened = predicted[known], real[known]
    if len(expected) < 2:
        return None
    large = np.abs(happened) >= np.median(np.abs(happened))
    same = (np.sign(expected) == np.sign(happened))[large].astype(float)
    return Agrees(len(expected), float(same.mean()), mean_interval(same.tolist()), rank_correlation(expected, happened))


def concentration(maps: FloatArray, masks: BoolArray) -> FloatArray:
    """Return how much of each map lies on an object, relative to its area: 1 is by chance. NaN without the object.

    Args:
        maps: ``[n, height, width]``, or with channels, whose sizes are added: opposite signs don't cancel.
        masks: ``[n, height, width]``.
    """
    size = np.abs(maps).sum(-1) if maps.ndim == 4 else np.abs(maps)
    within, whole = (size * masks).sum((1, 2)), size.sum((1, 2))
    area = masks.mean((1, 2))
    usable = (area > 0) & (whole > 0)
    share: FloatArray = np.divide(within, whole * area, out=np.full(len(maps), np.nan), where=usable)
    return share


def trained_against_untrained(
    question: Question,
    others: Sequence[Question],
    moments: Any,
    masks: Mapping[str, BoolArray],
    method: Method,
    name: str,
) -> dict[str, tuple[float, float]]:
    """Return each object's mean concentration, of the trained network and of untrained ones.

    Args:
        question: the trained network's.
        others: the same about untrained ones. One alone may like an object by chance.
        moments: with images.
        masks: objects in the images, ``[n, height, width]`` by name; images without one don't count.
        method: makes the maps.
        name: the input.
    """
    concentrations = []
    for asked in (question, *others):
        maps = attribute(method, asked, moments)[name]
        concentrations.append({thing: concentration(maps, mask) for thing, mask in masks.items()})
    seen = [thing for thing in masks if all(np.isfinite(by_object[thing]).any() for by_object in concentrations)]
    means = [{thing: float(np.nanmean(by_object[thing])) for thing in seen} for by_object in concentrations]
    return {thing: (means[0][thing], float(np.mean([by_object[thing] for by_object in means[1:]]))) for thing in seen}


def where_it_matters(masks: BoolArray, changes: FloatArray) -> BoolArray:
    """Return the masks of an object without those of the frames where its removal changes an output less than in half of them.

    Args:
        masks: ``[n, height, width]``.
        changes: by removal, ``[n]``; NaN where there is no object: see `rlhf_ray.interpret.agent.questions.objects.by_painting`.
    """
    size = np.nan_to_num(np.abs(changes), nan=-1.0)
    least = np.nanmedian(np.abs(changes)) if np.isfinite(changes).any() else np.inf
    mattering: BoolArray = masks & (size >= least)[:, None, None]
    return mattering


def _area(shares: FloatArray, values: FloatArray) -> float:
    return float(np.trapezoid(values, shares))
