"""How well the true reward can be told from a part of the steps, and from everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import GroupKFold

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.measure.intervals import jackknife
from rlhf_ray.reward.functions import CallableReward, RewardFunction

MOST = 400
"""Numbers of a part that are used as they are; larger parts are summed by region."""
STEPS, NUMBERS, LEVELS = 1000, 12, 8
"""Steps that forests are fitted to; most numbers of a part that means by level are taken of; levels."""
TREES, WIDE = 20, 40
"""Trees of a forest; numbers up to which each split of a tree looks at all, else at half of them."""
NEEDED = 0.005
"""Least share of the true reward's variance that a part adds to everything else to be needed: less is the forests' error."""
FITS = 0.9
"""Least R² of a stand-in for the true reward."""


@dataclass(frozen=True)
class Association:
    """What a part of steps tells of the true reward in episodes that were not seen: shares of its variance, R².

    Attributes:
        part: from the part alone.
        rest: from everything but the part.
        beside: what the part adds to everything else.
    """

    part: OverEpisodes
    rest: float
    beside: OverEpisodes

    @property
    def most(self) -> float:
        """The most that the part may tell, alone or beside the rest: the upper ends of the intervals."""
        return max(max(each.value, each.high) for each in (self.part, self.beside))


def association(data: Transitions, regions: Regions, mask: BoolArray) -> Association | None:
    """Measure what a part, and everything else, tell of the true reward.

    Forests find what numbers tell together, but miss what one number tells a little of; means by level of a number find that. The
    part tells what the better one finds.

    Returns:
        None if the true reward is unknown or constant, or there are fewer than three episodes.
    """
    if not np.isfinite(data.rewards).all():
        return None
    few = data.sample(STEPS, np.random.default_rng(0))
    if len(np.unique(few.episodes)) < 3 or np.ptp(few.rewards) == 0:
        return None
    truth, episodes = few.rewards, few.episodes
    states = [few.observations, few.next_observations]
    part, rest = (_numbers(states, which, regions) for which in (mask, ~mask))
    both = np.concatenate([part, rest], 1)
    guesses = {name: guessed(each, truth, episodes) for name, each in (("part", part), ("rest", rest), ("both", both))}
    spread = (truth - truth.mean()) ** 2
    errors = {name: (truth - guess) ** 2 for name, guess in guesses.items()}
    levels = _levels_of(part)
    wide = _levels_of(_numbers([data.observations, data.next_observations], mask, regions))
    left = truth - guesses["rest"]
    alone = [_gain(spread, errors["part"], spread, episodes)]
    alone += [_between(data.rewards, each, data.episodes, float(data.rewards.var())) for each in wide]
    beside = [_gain(errors["rest"], errors["both"], spread, episodes)]
    beside += [_between(left, each, episodes, float(truth.var())) for each in levels]
    return Association(_largest(alone), float(1 - errors["rest"].mean() / truth.var()), _largest(beside))


def added(data: Transitions, regions: Regions, masks: Sequence[BoolArray]) -> list[OverEpisodes] | None:
    """Measure what each of some parts adds to everything else of a step that tells the true reward, shares of its variance.

    Returns:
        None if the true reward is unknown or constant, or there are fewer than three episodes.
    """
    few = data.sample(STEPS, np.random.default_rng(0))
    truth, episodes = few.rewards, few.episodes
    if not np.isfinite(data.rewards).all() or len(np.unique(episodes)) < 3 or np.ptp(truth) == 0:
        return None
    states, others = [few.observations, few.next_observations], few.actions.reshape(len(few), -1)
    wholes = [np.concatenate([_numbers(states, ~mask, regions), others], 1) for mask in masks]
    numbers = np.concatenate([_numbers(states, np.ones_like(masks[0]), regions), others], 1)
    with_all = (truth - guessed(numbers, truth, episodes)) ** 2
    without = [(truth - guessed(whole, truth, episodes)) ** 2 for whole in wholes]
    spread = (truth - truth.mean()) ** 2
    return [_gain(errors, with_all, spread, episodes) for errors in without]


def _largest(found: Sequence[OverEpisodes]) -> OverEpisodes:
    """Return the largest figure, with the largest upper end of all."""
    best = max(found, key=lambda each: each.value)
    return OverEpisodes(
        max(best.value, 0.0), float(np.maximum(best.low, 0.0)), float(np.max([each.high for each in found]))
    )


def _levels_of(numbers: FloatArray) -> list[IntArray]:
    """Return the level of each step by each number; of more than `NUMBERS` numbers, which are no part but a picture, none."""
    found: list[IntArray] = []
    for column in numbers.T if numbers.shape[1] <= NUMBERS else ():
        edges = np.unique(np.quantile(column, np.linspace(0, 1, LEVELS + 1)[1:-1]))
        which = np.unique(np.searchsorted(edges, column, "right"), return_inverse=True)[1]
        found += [which] if which.max() > 0 else []
    return found


def _estimate(share: Callable[[FloatArray], Array], columns: Sequence[Array], episodes: IntArray) -> OverEpisodes:
    """Estimate a share of the sums of ``columns``, with its interval over episodes."""
    which = np.unique(episodes, return_inverse=True)[1]
    sums = np.stack([np.bincount(which, column) for column in columns], 1)
    return OverEpisodes.of(jackknife(share, sums, sizes=np.bincount(which)))


def _gain(before: FloatArray, after: FloatArray, spread: FloatArray, episodes: IntArray) -> OverEpisodes:
    """Return by how much the squared error falls from ``before`` to ``after``, as a share of ``spread``."""
    return _estimate(
        lambda sums: (sums[:, 0] - sums[:, 1]) / np.maximum(sums[:, 2], 1e-300), [before, after, spread], episodes
    )


def _between(values: FloatArray, levels: IntArray, episodes: IntArray, variance: float) -> OverEpisodes:
    """Return the variance of the means of ``values`` by level, less what it is by chance, as a share of ``variance``."""
    count = int(levels.max()) + 1
    of = [levels == level for level in range(count)]

    def share(sums: FloatArray) -> FloatArray:
        n, total, squares = sums[:, :count], sums[:, count:-1], sums[:, -1]
        steps = n.sum(1)
        between = (total**2 / np.maximum(n, 1)).sum(1) - total.sum(1) ** 2 / steps
        within = np.maximum(squares - (total**2 / np.maximum(n, 1)).sum(1), 0) / np.maximum(steps - count, 1)
        return np.asarray((between - (count - 1) * within) / steps / variance)

    return _estimate(share, [*of, *(values * at for at in of), values**2], episodes)


def guessed(numbers: FloatArray, truth: FloatArray, episodes: IntArray) -> FloatArray:
    """Return what forests say of ``truth`` from ``numbers``, each of episodes that were not seen."""
    guess = np.full(len(truth), float(truth.mean()))
    if numbers.shape[1] == 0:
        return guess
    for train, test in GroupKFold(3).split(numbers, truth, episodes):
        guess[test] = _forest(numbers.shape[1]).fit(numbers[train], truth[train]).predict(numbers[test])
    return guess


def predicted(numbers: FloatArray, truth: FloatArray, episodes: IntArray) -> float:
    """Return R² of forests that predict ``truth`` from ``numbers`` in held-out episodes."""
    return float(1 - np.mean((guessed(numbers, truth, episodes) - truth) ** 2) / np.var(truth))


def _forest(width: int) -> ExtraTreesRegressor:
    return ExtraTreesRegressor(
        TREES, min_samples_leaf=2, max_features=1.0 if width <= WIDE else 0.5, random_state=0, n_jobs=1
    )


def fitted_truth(reward: RewardFunction, data: Transitions) -> RewardFunction | None:
    """Fit forests to recorded true rewards: a stand-in for a true reward function that nobody has, whatever the reward is.

    Args:
        reward: gives the spaces.
        data: steps of vectors with true rewards; 1,500 at most are used.

    Returns:
        None if the forests explain less than `FITS` of the true reward in held-out episodes: they are no stand-in then.
    """
    truth = data.rewards
    if not np.isfinite(truth).all() or np.ptp(truth) == 0 or len(np.unique(data.episodes)) < 3:
        return None
    part = data.sample(1500, np.random.default_rng(0))
    numbers = _columns(part.observations, part.actions, part.next_observations, part.terminated)
    if np.ptp(part.rewards) == 0 or predicted(numbers, part.rewards, part.episodes) < FITS:
        return None
    forest = _forest(numbers.shape[1]).fit(numbers, part.rewards)
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
