"""Confidence intervals for means of few measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy import stats


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Compute the 95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, half = statistics.mean(values), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return [mean - half, mean + half]
