"""How well the true reward can be told from a part of the steps, and from everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import GroupKFold

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.exchange import ExchangePairs
from rlhf_ray.interpret.reward.regions import Regions
from rlhf_ray.reward.functions import CallableReward, RewardFunction

MOST = 400
"""Numbers of a part that are used as they are; larger parts are summed by region."""
FITS = 0.9
"""Least R² of a stand-in for the true reward."""


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


def fitted_truth(reward: RewardFunction, data: Transitions, rng: np.random.Generator) -> RewardFunction | None:
    """Fit forests to recorded true rewards: a stand-in for a true reward function that nobody has.

    Args:
        reward: gives the spaces.
        data: steps of vectors with true rewards.
        rng: draws the steps that are used, 1,500 at most.

    Returns:
        None if the forests explain less than `FITS` of the true reward in held-out episodes: they are no stand-in then.
    """
    truth = data.rewards
    if not np.isfinite(truth).all() or np.ptp(truth) == 0 or len(np.unique(data.episodes)) < 3:
        return None
    part = data.sample(1500, rng)
    numbers = _columns(part.observations, part.actions, part.next_observations, part.terminated)
    if np.ptp(part.rewards) == 0 or predicted(numbers, part.rewards, part.episodes) < FITS:
        return None
    forest = ExtraTreesRegressor(20, min_samples_leaf=2, random_state=0, n_jobs=1).fit(numbers, part.rewards)
    return CallableReward(
        lambda *step: np.asarray(forest.predict(_columns(*step))),
        reward.observation_space,
        reward.action_space,
        "fitted",
    )


def told_by_step(given: FloatArray, data: Transitions, rng: np.random.Generator) -> float:
    """Return R² of forests that predict rewards from all that a step shows, in held-out episodes; 0 with fewer than three."""
    at = np.sort(rng.choice(len(data), min(len(data), 1000), replace=False))
    if len(np.unique(data.episodes[at])) < 3 or np.ptp(given[at]) == 0:
        return 0.0
    part = data[at]
    numbers = _columns(part.observations, part.actions, part.next_observations, part.terminated)
    return predicted(numbers, given[at], part.episodes)


def _columns(observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
    of = (observations, actions, next_observations, terminated)
    return np.concatenate([np.asarray(each, np.float32).reshape(len(terminated), -1) for each in of], 1)


def _numbers(states: list[Array], mask: BoolArray, regions: Regions) -> FloatArray:
    numbers = [np.asarray(each[:, mask], np.float32) for each in states]
    if mask.sum() > MOST:
        masked = [np.where(mask, each, 0).astype(np.float32) for each in states]
        numbers = [regions.sums(each)[:, (regions.masks & mask).reshape(len(regions), -1).any(1)] for each in masked]
    return np.concatenate([numbers[0], numbers[1], numbers[1] - numbers[0]], 1)
