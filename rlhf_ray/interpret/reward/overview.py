"""How a reward compares with the true one, and with itself: correlations, members, distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.measure.intervals import percentile_interval

RESAMPLES = 300

PAIRS = 20_000
"""Pairs of steps to compare."""


@dataclass(frozen=True)
class OverEpisodes:
    """A figure with its 95 % bootstrap interval over episodes; NaN bounds with fewer than three episodes."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        bounds = "" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}{bounds}"


def pairs_in_order(true: Array, given: Array, at: IntArray, rng: np.random.Generator) -> float:
    """Compute the share of pairs of steps with different true rewards that the given reward orders alike; ties count half.

    Unlike a rank correlation, it does not depend on how many steps share one true reward. 0.5 if all do.

    Args:
        true: ``[n]``.
        given: ``[n]``.
        at: steps to pair.
        rng: draws `PAIRS` pairs.
    """
    first, second = rng.choice(at, (2, PAIRS))
    differ = true[first] != true[second]
    if not differ.any():
        return 0.5
    first, second = first[differ], second[differ]
    alike = np.sign(given[first] - given[second]) * np.sign(true[first] - true[second])
    return float((alike.mean() + 1) / 2)


def over_episodes(
    figure: Callable[[IntArray], float], episodes: IntArray, rng: np.random.Generator, resamples: int = RESAMPLES
) -> OverEpisodes:
    """Compute ``figure(index of steps)`` for all steps and its bootstrap interval, drawing whole episodes."""
    names, inverse = np.unique(episodes, return_inverse=True)
    where = [np.flatnonzero(inverse == i) for i in range(len(names))]
    value = figure(np.arange(len(episodes)))
    if len(names) < 3:
        return OverEpisodes(value, float("nan"), float("nan"))
    drawn = [
        figure(np.concatenate([where[i] for i in rng.integers(len(names), size=len(names))])) for _ in range(resamples)
    ]
    return OverEpisodes(value, *percentile_interval(drawn))


def episode_sums(values: FloatArray, episodes: IntArray) -> FloatArray:
    """Sum ``values`` within each episode: ``[episodes]``, in the order of their numbers."""
    _, inverse = np.unique(episodes, return_inverse=True)
    return np.asarray(np.bincount(inverse, values), np.float64)
