"""Intervals: how sure a median, or another statistic, of measurements is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats


def bootstrap(values: Sequence[Any], statistic: Callable[..., Any] = np.median, draws: int = 10_000) -> list[float]:
    """The 95 % percentile bootstrap interval of a statistic of ``values``: of their median, unless another is given."""
    if len(values) < 2:
        return [float(statistic(values))] * 2
    found = stats.bootstrap((values,), statistic, n_resamples=draws, method="percentile", rng=0)
    return [float(bound) for bound in found.confidence_interval]
