"""Where the learned reward differs from the true one: a shallow tree on the difference of their orders (scikit-learn).

The tree is grown on half of the episodes; the figures of its leaves are of the other half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.exchange import Order, numbers_beside
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.measure.intervals import MeanEstimate, jackknife_rows

LEAVES = 5
SMALLEST = 0.005
"""Least share of the steps in a leaf."""
CELLS = 128
"""Most regions that the tree splits on."""


@dataclass(frozen=True)
class Leaf:
    """A kind of step.

    The difference is the mean of that of the orders, learned less true, with its interval over episodes: 0.5 is half of all steps;
    positive: overvalued.
    """

    path: str  # the conditions, for example "angle > 0.5 and action 0 <= 1"
    share: float  # of the held-out steps
    difference: MeanEstimate


@dataclass(frozen=True)
class DifferenceTree:
    """The leaves, the largest difference first, and the share of the held-out differences' variance that the tree explains."""

    leaves: list[Leaf]
    explained: float


def difference_tree(
    learned: FloatArray, true: FloatArray, data: Transitions, regions: Regions | None, space: Any
) -> DifferenceTree | None:
    """Grow the tree on the rewards and true rewards of steps, ``[n]``; None for fewer than two episodes or equal orders.

    It splits on the mean of each region (None for tables), the action of ``space``, and what is known beside the steps.
    """
    from sklearn.tree import DecisionTreeRegressor  # a slow import

    apart = Order(learned)(learned) - Order(true)(true)
    episodes = np.unique(data.episodes)
    if len(episodes) < 2 or not np.abs(apart).max(initial=0.0) > 1e-9:
        return None
    columns = columns_of(data, regions, space)
    values = np.stack(list(columns.values()), 1)
    grown = np.isin(data.episodes, episodes[::2])
    least = max(5, math.ceil(SMALLEST * grown.sum()))
    tree = DecisionTreeRegressor(max_leaf_nodes=LEAVES, min_samples_leaf=least, random_state=0)
    tree.fit(values[grown], apart[grown])
    rest, actual = values[~grown], apart[~grown]
    explained = float(tree.score(rest, actual)) if actual.var() > 0 else math.nan
    at = tree.apply(rest)
    leaves = [_leaf(tree.tree_, int(leaf), list(columns), at, actual, data.episodes[~grown]) for leaf in np.unique(at)]
    return DifferenceTree(sorted(leaves, key=lambda leaf: -abs(leaf.difference.mean) * leaf.share**0.5), explained)


def _leaf(tree: Any, leaf: int, names: list[str], at: IntArray, apart: FloatArray, episodes: IntArray) -> Leaf:
    inside = at == leaf

    def mean(rows: IntArray) -> float:
        return float(apart[rows][inside[rows]].mean()) if inside[rows].any() else math.nan

    path = " and ".join(_path(tree, leaf, names)) or "all steps"
    return Leaf(path, float(inside.mean()), jackknife_rows(mean, episodes))


def _path(tree: Any, leaf: int, names: list[str]) -> list[str]:
    """Return the conditions of a leaf, from the root; of one name and direction, only the tightest."""
    found: dict[tuple[str, bool], float] = {}
    node = leaf
    while node:
        parent = int(np.flatnonzero((tree.children_left == node) | (tree.children_right == node))[0])
        left = tree.children_left[parent] == node
        key = (names[tree.feature[parent]], bool(left))
        bound = float(tree.threshold[parent])
        found[key] = bound if key not in found else (min if left else max)(found[key], bound)
        node = parent
    return [f"{name} {'≤' if left else '>'} {bound:.3g}" for (name, left), bound in reversed(found.items())]


def columns_of(data: Transitions, regions: Regions | None, space: Any) -> dict[str, FloatArray]:
    """Return the numbers that a tree may split on, by name: regions before and after the step, action, end, time, state columns."""
    found: dict[str, FloatArray] = {}
    before, after = (np.asarray(each, np.float64) for each in (data.observations, data.next_observations))
    if regions is not None and len(regions) <= CELLS:
        masks = regions.masks.reshape(len(regions), -1).astype(np.float64)
        means = [of.reshape(len(of), -1) @ masks.T / np.maximum(masks.sum(1), 1) for of in (after, before)]
        for name, late, early in zip(regions.names, means[0].T, means[1].T, strict=True):
            found[f"{name} after the step"], found[name] = late, early
    elif regions is None:
        found |= {"the state after the step": after.reshape(len(data)), "the state": before.reshape(len(data))}
    actions = np.asarray(data.actions, np.float64).reshape(len(data), -1)
    single = actions.shape[1] == 1
    for at, column in enumerate(actions.T):
        name = "the action" if single else f"action {at}"
        found[name] = column
        if single and (choices := choices_of(space)) and choices[0] > 2:
            first = float(np.asarray(space.start).flatten()[0])
            found |= {
                f"whether the action is {first + k:g}": np.equal(column, first + k) * 1.0 for k in range(choices[0])
            }
    found["whether the step ends the episode"] = data.terminated * 1.0
    found |= numbers_beside(data)
    return {name: column for name, column in found.items() if np.isfinite(column).all()}
