"""Confidence intervals, 95 %: of means, of any figure of measurements that come in groups, of shares and of correlations.

Groups are episodes, levels or fragments: what was drawn independently of each other. Steps never are. An interval over groups is a
jackknife (Quenouille 1949, Tukey 1958): it compares the figure with the figures without each group, by Student's t. A percentile
bootstrap of 3 to 20 groups is too narrow: it holds the true value in 60 to 90 of 100 data sets. `benchmarks/coverage.py` measures
the coverage. With too few groups there is no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import settled
from rlhf_ray.measure.statistics import constant, ranks

FEWEST = 3
"""Fewest groups for the interval of a figure other than a mean: without one of two, a correlation is that of a single group."""
BLOCKS = 40
"""Most groups that a figure is computed without; more groups are put together into as many blocks."""
ODDS = math.log(4)
"""The most that leaving out one group may change the log-odds of a bounded figure. A figure that rests on one group alone becomes
0 without it, with infinite log-odds."""
ROUNDING = 1e-6
"""Distance from its bound, relative to the range, below which a figure is at the bound: 32-bit networks round as much."""
Bounds = tuple[float, float]
"""Least and largest possible value of a figure."""
ANY, POSITIVE, SHARE, CORRELATION = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0), (-1.0, 1.0)


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Compute the 95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.mean(values)
    half = statistics.stdev(values) / math.sqrt(len(values)) * student(len(values) - 1)
    return [mean - half, mean + half]


def jackknife_interval(
    value: float, without: Array, sizes: Array | None = None, bounds: Bounds = ANY
) -> tuple[float, float] | tuple[None, None]:
    """Compute the interval of a figure of groups from the figures without each group.

    A bounded figure is compared on the scale of its log-odds (Fisher's transform of a correlation; the logarithm if it has one
    bound), so that the interval stays within the bounds. A figure that no group changes gets an interval of no width: an exact
    result stays exact.

    Args:
        value: the figure of all groups.
        without: the figure without each group, ``[groups]``.
        sizes: steps of each group, ``[groups]``: long groups count for more, so that fewer than all decide. None: all equal.
        bounds: least and largest possible value.

    Returns:
        Both ends. None, if there are fewer than `FEWEST` groups, or if one group alone defines the figure.
    """
    others = np.asarray(without, np.float64)
    count = len(others)
    lengths = np.ones(count) if sizes is None else np.asarray(sizes, np.float64)
    number = float(lengths.sum() ** 2 / max((lengths**2).sum(), 1e-300))
    if count < FEWEST or not np.isfinite(value) or not np.isfinite(others).all():
        return None, None
    middle, changed = _unbounded(np.array([value]), bounds), _unbounded(others, bounds)
    change = middle - changed if bounds == ANY else np.clip(middle - changed, -ODDS, ODDS)
    largest = float(np.abs(change).max())
    if largest <= 1e-12 * max(1.0, abs(float(middle[0]))):
        return value, value
    influence = change / largest
    # Degrees of freedom of a variance of so heavy tails (Satterthwaite 1946), and of groups of such lengths.
    kurtosis = count * float((influence**4).sum()) / float((influence**2).sum()) ** 2
    freedom = max(1.0, min(number - 1, 2 * count / max(kurtosis - 1, 1e-9) - 1))
    deviation = largest * math.sqrt(float((influence**2).sum()) * (count - 1) / count)
    half = student(freedom) * deviation
    low, high = _bounded(middle + np.array([-half, half]), bounds)
    return min(value, float(low)), max(value, float(high))


def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t: half an interval, in standard errors."""
    from scipy.special import stdtrit  # `scipy.stats` takes a second to import

    return float(stdtrit(freedom, 0.975))


def _unbounded(values: FloatArray, bounds: Bounds) -> FloatArray:
    low, high = bounds
    if low == -math.inf:
        return values
    if high == math.inf:
        return np.asarray(np.log(np.maximum(values - low, ROUNDING)))
    inside = np.clip((values - low) / (high - low), ROUNDING, 1 - ROUNDING)
    return np.asarray(np.log(inside / (1 - inside)))


def _bounded(values: FloatArray, bounds: Bounds) -> FloatArray:
    low, high = bounds
    if low == -math.inf:
        return values
    if high == math.inf:
        return np.asarray(low + np.exp(np.minimum(values, 700)))
    return np.asarray(low + (high - low) * (0.5 + 0.5 * np.tanh(values / 2)))


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

    def text(self, digits: int = 2) -> str:
        """Return mean and interval, for tables."""
        if self.low is None or self.high is None:
            return f"{self.mean:z.{digits}f}"
        return f"{self.mean:z.{digits}f} [{self.low:z.{digits}f}, {self.high:z.{digits}f}]"


def jackknife(
    figure: Callable[[FloatArray], Array], sums: Array, bounds: Bounds = ANY, sizes: Array | None = None
) -> MeanEstimate:
    """Estimate a figure of the sums over groups, with its `jackknife_interval`.

    Args:
        figure: computes the figure from sums ``[n, ...]``, for each of the n.
        sums: of each group, ``[groups, ...]``.
        bounds: least and largest possible value.
        sizes: steps of each group.
    """
    total = sums.sum(0)
    with np.errstate(all="ignore"):
        figures = np.asarray(figure(np.concatenate([total[None], total - sums])), np.float64)
    value = float(figures[0])
    return MeanEstimate(value, *jackknife_interval(value, figures[1:], sizes, bounds))


def jackknife_rows(figure: Callable[[IntArray], float], groups: Array, bounds: Bounds = ANY) -> MeanEstimate:
    """Estimate a figure of any rows, with its `jackknife_interval` over groups, of which at most `BLOCKS` are left out.

    Args:
        figure: computes the figure from the indices of the rows that count.
        groups: the group of each row, ``[n]``.
        bounds: least and largest possible value.
    """
    value, count = figure(np.arange(len(groups))), len(np.unique(groups))
    if count < FEWEST:
        return MeanEstimate(value, None, None)
    block = blocks(groups)
    others = [figure(np.flatnonzero(block != left)) for left in range(int(block.max()) + 1)]
    return MeanEstimate(value, *jackknife_interval(value, np.array(others), np.bincount(block), bounds))


def blocks(groups: Array) -> IntArray:
    """Number the groups ``[n]`` from 0; more than `BLOCKS` groups share numbers below that."""
    return np.asarray(np.unique(groups, return_inverse=True)[1].ravel() % BLOCKS)


def estimate_mean(values: FloatArray, groups: Array | None = None, bounds: Bounds = ANY) -> MeanEstimate:
    """Estimate the mean of ``values`` ``[n]`` with its interval over groups (Student's t; none for fewer than two groups).

    Args:
        values: what was measured; for two conditions on the same levels, the differences.
        groups: the group of each value, ``[n]``, for example its level: values of one group are averaged first, and groups count
            equally. None: each value is a group.
        bounds: the interval is cut off at the least and largest possible value.
    """
    sample = np.asarray(values, np.float64)
    if groups is not None and len(sample):
        group = np.unique(groups, return_inverse=True)[1].ravel()
        sample = np.bincount(group, sample) / np.bincount(group)
    mean = float(sample.mean()) if len(sample) else 0.0
    if len(sample) < 2:
        return MeanEstimate(mean, None, None)
    half = float(sample.std(ddof=1)) / math.sqrt(len(sample)) * student(len(sample) - 1)
    return MeanEstimate(mean, max(mean - half, min(mean, bounds[0])), min(mean + half, max(mean, bounds[1])))


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
    first: Array, second: Array, groups: Array | None = None, *, interval: bool = True
) -> MeanEstimate:
    """Estimate Pearson's correlation, with a jackknife over groups.

    Args:
        first: ``[n]``.
        second: ``[n]``.
        groups: the group of each pair of values, ``[n]``, for example its episode. None: each is a group.
        interval: whether to compute the interval.

    Returns:
        The correlation; NaN if it is undefined, because one side is constant or there are fewer than 3 values.
    """
    a, b = (np.asarray(values, np.float64).ravel() for values in (first, second))
    if len(a) < 3 or constant(a) or constant(b):
        return MeanEstimate(math.nan, None, None)
    group = np.arange(len(a)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    sums = correlation_sums((a - a.mean()) / a.std(), (b - b.mean()) / b.std(), group)
    if not interval:
        return MeanEstimate(float(correlation_of(sums.sum(0))), None, None)
    return jackknife(correlation_of, sums, CORRELATION, sums[:, 0])


def rank_correlation(
    first: Array, second: Array, groups: Array | None = None, *, interval: bool = True
) -> MeanEstimate:
    """Estimate Spearman's correlation: `linear_correlation` of the ranks, which are those among all values."""
    return linear_correlation(ranks(first), ranks(second), groups, interval=interval)


def correlation_sums(first: FloatArray, second: FloatArray, group: IntArray) -> FloatArray:
    """Return the sums of each group that a correlation needs, ``[groups, 6]``; ``group``: ``[n]``, from 0."""
    columns = (np.ones(len(first)), first, second, first**2, second**2, first * second)
    return np.stack([np.bincount(group, column) for column in columns], 1)


def correlation_of(sums: FloatArray) -> FloatArray:
    """Return the correlations of `correlation_sums` ``[..., 6]`` of standardised values; NaN if one side is constant."""
    n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):
        of_a, of_b = aa / n - (a / n) ** 2, bb / n - (b / n) ** 2
        found = (ab / n - a / n * b / n) / np.sqrt(of_a * of_b)
    return np.where((of_a > 1e-12) & (of_b > 1e-12), np.clip(found, -1, 1), math.nan)


@dataclass(frozen=True)
class RewardCorrelations:
    """Correlations of a learned with the true reward; NaN where one of them is constant or unknown.

    Attributes:
        fragments: number of fragments.
        steps_linear, steps_rank: Pearson's and Spearman's correlation of the rewards of single steps.
        returns_linear, returns_rank: the same of undiscounted returns of whole fragments.
    """

    fragments: int
    steps_linear: MeanEstimate
    steps_rank: MeanEstimate
    returns_linear: MeanEstimate
    returns_rank: MeanEstimate


def reward_correlations(learned: Array, true: Array, intervals: bool = True) -> RewardCorrelations:
    """Correlate a learned reward with the true one.

    Args:
        learned: ``[fragments, length]``.
        true: ``[fragments, length]``.
        intervals: whether to compute intervals, over fragments.

    Raises:
        ValueError: the shapes differ.
    """
    a, b = np.asarray(learned, np.float64), np.asarray(true, np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"learned and true must be [fragments, length] each; got shapes {a.shape} and {b.shape}.")
    group = np.repeat(np.arange(len(a)), a.shape[1])
    return RewardCorrelations(
        len(a),
        linear_correlation(a, b, group, interval=intervals),
        rank_correlation(a, b, group, interval=intervals),
        linear_correlation(settled(a), settled(b), None, interval=intervals),
        rank_correlation(settled(a), settled(b), None, interval=intervals),
    )
