"""How well the true reward can be told from a part of the steps, and from everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import GroupKFold

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.reward.exchange import ExchangePairs
from rlhf_ray.interpret.reward.regions import Regions

MOST = 400
"""Numbers of a part that are used as they are; larger parts are summed by region."""


@dataclass(frozen=True)
class Association:
    """How well forests on parts of steps predict the true reward of unseen episodes: R², 1 is perfect, 0 the constant mean.

    Attributes:
        part: from the part alone.
        rest: from everything but the part.
    """

    part: float
    rest: float


def association(pairs: ExchangePairs, regions: Regions, mask: BoolArray, most: int = 300) -> Association | None:
    """Measure how well a part, and everything else, predict the true reward of the pairs' steps.

    Returns:
        None if the true reward is unknown or constant, or there are fewer than three episodes.
    """
    at = np.arange(min(len(pairs), most))
    truth = np.concatenate([pairs.own.rewards[at], pairs.donor.rewards[at]])
    if not np.isfinite(truth).all() or np.ptp(truth) == 0:
        return None
    states = [
        np.concatenate([getattr(pairs.own, name)[at], getattr(pairs.donor, name)[at]])
        for name in ("observations", "next_observations")
    ]
    steps = np.concatenate([pairs.indices[at], pairs.donor_indices[at]])
    episodes = np.concatenate([pairs.own.episodes[at], pairs.donor.episodes[at]])
    _, once = np.unique(steps, return_index=True)
    states, truth, episodes = [each[once] for each in states], truth[once], episodes[once]
    if len(np.unique(episodes)) < 3 or np.ptp(truth) == 0:
        return None
    return Association(*(predicted(_numbers(states, which, regions), truth, episodes) for which in (mask, ~mask)))


def predicted(numbers: FloatArray, truth: FloatArray, episodes: IntArray) -> float:
    """Return R² of forests that predict ``truth`` from ``numbers`` in held-out episodes."""
    if numbers.shape[1] == 0:
        return 0.0
    guess = np.zeros(len(truth))
    for train, test in GroupKFold(3).split(numbers, truth, episodes):
        forest = ExtraTreesRegressor(12, min_samples_leaf=2, max_features=0.5, random_state=0, n_jobs=1)
        guess[test] = forest.fit(numbers[train], truth[train]).predict(numbers[test])
    return float(1 - np.mean((guess - truth) ** 2) / np.var(truth))


def _numbers(states: list[Array], mask: BoolArray, regions: Regions) -> FloatArray:
    numbers = [np.asarray(each[:, mask], np.float32) for each in states]
    if mask.sum() > MOST:
        masked = [np.where(mask, each, 0).astype(np.float32) for each in states]
        numbers = [regions.sums(each)[:, (regions.masks & mask).reshape(len(regions), -1).any(1)] for each in masked]
    return np.concatenate([numbers[0], numbers[1], numbers[1] - numbers[0]], 1)
