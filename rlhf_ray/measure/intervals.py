"""Confidence intervals: for means of few measurements, of many that come in groups, for shares and for correlations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.measure.statistics import constant, ranks


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Compute the 95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy import stats  # takes a second to import, which fits of the reward model need not wait for

    mean, half = statistics.mean(values), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return [mean - half, mean + half]


@dataclass(frozen=True)
class MeanEstimate:
    """A mean with its 95 % confidence interval; ``low`` and ``high`` are None if there are too few measurements for one."""

    mean: float
    low: float | None
    high: float | None

    @property
    def holds_zero(self) -> bool:
        """Whether 0 is inside the interval, or there is no interval."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high

    def beyond(self, size: float) -> bool:
        """Return whether the whole interval is farther from 0 than ``size``, on one side."""
        return not self.holds_zero and min(abs(self.low or 0.0), abs(self.high or 0.0)) > abs(size)

    def scaled(self, factor: float) -> MeanEstimate:
        """Return the estimate in other units; ``factor`` is positive."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return MeanEstimate(factor * self.mean, low, high)

    def text(self, digits: int = 2) -> str:
        """Return mean and interval, for tables."""
        if self.low is None or self.high is None:
            return f"{self.mean:z.{digits}f}"
        return f"{self.mean:z.{digits}f} [{self.low:z.{digits}f}, {self.high:z.{digits}f}]"


def bootstrap_difference(
    values: FloatArray, chosen: Array, groups: Array | None = None, seed: int = 0, draws: int = 1000, tests: int = 1
) -> MeanEstimate:
    """Estimate how much larger the mean of ``values`` ``[n]`` is where ``chosen`` ``[n]`` than elsewhere: a `weighted_contrast`."""
    yes = np.asarray(chosen, bool)
    weights = np.stack([yes, ~yes], 1).astype(np.float64)
    return weighted_contrast(values, weights, np.array([1.0, -1.0]), groups, seed, draws, tests)


def weighted_contrast(
    values: FloatArray,
    cells: FloatArray,
    signs: FloatArray,
    groups: Array | None = None,
    seed: int = 0,
    draws: int = 1000,
    tests: int = 1,
) -> MeanEstimate:
    """Estimate a sum of the means of ``values`` in cells, with signs, by a percentile bootstrap over groups.

    Args:
        values: ``[n]``.
        cells: 1 where a value is in a cell, ``[n, cells]``: two with signs 1 and -1 are a difference, four are an interaction.
        signs: of the cells' means, ``[cells]``.
        groups: ``[n]``; see `bootstrap`. Draws without a value in some cell are left out.
        seed: seeds the draws.
        draws: number of draws, for each test.
        tests: see `bootstrap`.

    Returns:
        The estimate; NaN if a cell is empty.
    """
    group = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    count = int(group.max(initial=-1)) + 1
    sums, sizes = np.zeros((count, len(signs))), np.zeros((count, len(signs)))
    np.add.at(sums, group, cells * np.asarray(values, np.float64)[:, None])
    np.add.at(sizes, group, cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = float((sums.sum(0) / sizes.sum(0)) @ signs)
        if count < 2 or math.isnan(mean):
            return MeanEstimate(mean, None, None)
        weights = np.random.default_rng([seed, count]).multinomial(count, np.full(count, 1 / count), draws * tests)
        means = ((weights @ sums) / (weights @ sizes)) @ signs
    return MeanEstimate(mean, *percentile_interval(means, tests))


def percentile_interval(draws: Array | Sequence[float], tests: int = 1) -> tuple[float, float]:
    """Return the 95 % interval of a bootstrap's draws; those that are NaN are left out. ``tests``: see `bootstrap`."""
    values = np.asarray(draws, np.float64)
    defined = values[~np.isnan(values)]
    if not len(defined):
        return math.nan, math.nan
    low, high = np.quantile(defined, [0.025 / tests, 1.0 - 0.025 / tests])
    return float(low), float(high)


def bootstrap(
    values: FloatArray, groups: Array | None = None, seed: int = 0, draws: int = 1000, tests: int = 1
) -> MeanEstimate:
    """Estimate the mean of ``values`` ``[n]`` by a percentile bootstrap (Efron 1979) over groups.

    Args:
        values: what was measured; for two conditions on the same levels, the differences.
        groups: the group of each value, ``[n]``, for example its level: values of one group are averaged first, and groups are
            drawn as a whole. None: each value is a group.
        seed: seeds the draws.
        draws: number of draws, for each test.
        tests: how many estimates are looked at together: the interval is wider, so that all of them hold in 95 % (Bonferroni).
    """
    sample, draws = np.asarray(values, np.float64), draws * tests
    if groups is not None and len(sample):
        _, group = np.unique(groups, return_inverse=True)
        sample = np.bincount(group, sample) / np.bincount(group)
    mean = float(sample.mean()) if len(sample) else 0.0
    if len(sample) < 2:
        return MeanEstimate(mean, None, None)
    rng, means, chunk = np.random.default_rng([seed, len(sample)]), [], max(1, 2_000_000 // len(sample))
    for first in range(0, draws, chunk):
        means.append(sample[rng.integers(len(sample), size=(min(chunk, draws - first), len(sample)))].mean(1))
    return MeanEstimate(mean, *percentile_interval(np.concatenate(means), tests))


def share_interval(successes: float, trials: int) -> MeanEstimate:
    """Estimate a share with its 95 % interval (Wilson 1927), which is never empty at 0 or 1. NaN without trials.

    Args:
        successes: number of successes; half ones count.
        trials: number of trials.
    """
    if trials < 1:
        return MeanEstimate(math.nan, None, None)
    share, z = successes / trials, 1.959964
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return MeanEstimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def linear_correlation(
    first: Array, second: Array, groups: Array | None = None, seed: int = 0, draws: int = 500
) -> MeanEstimate:
    """Estimate Pearson's correlation with a percentile bootstrap over groups.

    Args:
        first: ``[n]``.
        second: ``[n]``.
        groups: the group of each pair of values, ``[n]``, for example its episode; groups are drawn as a whole. None: each
            is a group.
        seed: seeds the draws.
        draws: number of draws; 0 for no interval.

    Returns:
        The correlation; NaN if it is undefined, because one side is constant or there are fewer than 3 values. No interval for
        fewer than 3 groups.
    """
    a, b = (np.asarray(values, np.float64).ravel() for values in (first, second))
    if len(a) < 3 or constant(a) or constant(b):
        return MeanEstimate(math.nan, None, None)
    group = np.arange(len(a)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    a, b = ((values - values.mean()) / values.std() for values in (a, b))
    correlation, count = float(np.clip((a * b).mean(), -1, 1)), int(group.max()) + 1
    if count < 3 or not draws:
        return MeanEstimate(correlation, None, None)
    # The sums of each group are all that a resample needs.
    sums = np.stack([np.bincount(group, values) for values in (np.ones(len(a)), a, b, a * a, b * b, a * b)], 1)
    weights = np.random.default_rng([seed, count]).multinomial(count, np.full(count, 1 / count), draws)
    n, of_a, of_b, of_aa, of_bb, of_ab = (weights @ sums).T
    with np.errstate(all="ignore"):
        spread = np.sqrt(np.maximum(of_aa / n - (of_a / n) ** 2, 0) * np.maximum(of_bb / n - (of_b / n) ** 2, 0))
        influence = (of_ab / n - of_a / n * of_b / n) / spread
    low, high = percentile_interval(np.clip(influence[np.isfinite(influence)], -1, 1))
    return MeanEstimate(correlation, min(correlation, low), max(correlation, high))


def rank_correlation(
    first: Array, second: Array, groups: Array | None = None, seed: int = 0, draws: int = 500
) -> MeanEstimate:
    """Estimate Spearman's correlation: `linear_correlation` of the ranks, which are those among all values in every draw."""
    return linear_correlation(ranks(first), ranks(second), groups, seed, draws)
