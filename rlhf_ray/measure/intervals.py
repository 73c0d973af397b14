"""Confidence intervals for means: of few measurements, and of many that come in groups."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rlhf_ray.data.arrays import Array, FloatArray


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Compute the 95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    if len(values) < 2:
        return None
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

    def text(self, digits: int = 2) -> str:
        """Return mean and interval, for tables."""
        if self.low is None or self.high is None:
            return f"{self.mean:z.{digits}f}"
        return f"{self.mean:z.{digits}f} [{self.low:z.{digits}f}, {self.high:z.{digits}f}]"


def bootstrap(values: FloatArray, groups: Array | None = None, seed: int = 0, draws: int = 1000) -> MeanEstimate:
    """MeanEstimate the mean of ``values`` ``[n]`` by a percentile bootstrap (Efron 1979) over groups.

    Args:
        values: what was measured; for two conditions on the same levels, the differences.
        groups: the group of each value, ``[n]``, for example its level: values of one group are averaged first, and groups are
            drawn as a whole. None: each value is a group.
        seed: seeds the draws.
        draws: number of draws.
    """
    each = np.asarray(values, np.float64)
    if groups is not None and len(each):
        _, of = np.unique(groups, return_inverse=True)
        each = np.bincount(of, each) / np.bincount(of)
    mean = float(each.mean()) if len(each) else 0.0
    if len(each) < 2:
        return MeanEstimate(mean, None, None)
    rng, found, chunk = np.random.default_rng([seed, len(each)]), [], max(1, 2_000_000 // len(each))
    for first in range(0, draws, chunk):
        found.append(each[rng.integers(len(each), size=(min(chunk, draws - first), len(each)))].mean(1))
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
    return MeanEstimate(mean, float(low), float(high))
