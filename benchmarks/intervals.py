"""Arms that take turns, and how sure a median, or another statistic, of measurements is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats


def bootstrap(values: Sequence[Any], statistic: Callable[..., Any] = np.median, draws: int = 10_000) -> list[float]:
    """The 95 % percentile bootstrap interval of a statistic of ``values``: of their median, unless another is given."""
    if len(values) < 2:
        return [float(statistic(values))] * 2
    found = stats.bootstrap((values,), statistic, n_resamples=draws, method="percentile", rng=0)
    return [float(bound) for bound in found.confidence_interval]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The median of ``ours`` in ``theirs``, turn by turn, with its interval."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ratios), "interval_95": bootstrap(ratios)}


def in_turns(arms: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """What each arm gives in ``turns`` turns, AB, BA, after one that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns + 1):
        for name in list(arms)[:: 1 if turn % 2 else -1]:
            value = arms[name]()
            if turn:
                found[name].append(value)
    return found


def cpu_seconds(call: Callable[[], object]) -> Callable[[], float]:
    """What calls ``call`` and returns the CPU seconds that this process took for it."""

    def timed() -> float:
        begun = time.process_time()
        call()
        return time.process_time() - begun

    return timed
