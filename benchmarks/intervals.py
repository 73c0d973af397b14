"""Intervals: how sure a median of measurements is."""

from __future__ import annotations

import random
import statistics


def median_interval(values: list[float], draws: int = 10_000) -> list[float]:
    """Bootstrap 95 % interval of the median."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(draws))
    return [medians[int(0.025 * draws)], medians[int(0.975 * draws)]]
