"""A figure of steps with its interval over episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.intervals import percentile_interval

RESAMPLES = 300
"""Draws of the bootstrap: its 2.5 % ends are the seventh draws."""
EPISODES = 10
"""Whole episodes to look at, at least; else steps of all: a few episodes show what they have in common."""


@dataclass(frozen=True)
class OverEpisodes:
    """A figure with its 95 % bootstrap interval over episodes; NaN bounds with fewer than three episodes."""

    value: float
    low: float
    high: float

    def beyond(self, bound: float) -> bool | None:
        """Whether the value is above ``bound``; None if the bound lies within the interval, or the value is unknown."""
        low, high = (self.value if np.isnan(end) else end for end in (self.low, self.high))
        return None if np.isnan(self.value) or low <= bound < high else bool(low > bound)

    def below(self, bound: float) -> bool:
        """Whether the value is below ``bound``, with its whole interval."""
        return bool(self.value < bound and not self.high >= bound)

    def __str__(self) -> str:
        bounds = "" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}{bounds}"


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


def whole_episodes(data: Transitions, most: int, rng: np.random.Generator) -> Transitions:
    """Return whole episodes of ``data``, drawn at random, with ``most`` steps at most; steps of all if those were few episodes."""
    if len(data) <= most:
        return data
    names, sizes = np.unique(data.episodes, return_counts=True)
    order = rng.permutation(len(names))
    fit = int((np.cumsum(sizes[order]) <= most).sum())
    if fit < min(EPISODES, len(names)):
        return data.sample(most, rng)
    return data[np.isin(data.episodes, names[order[:fit]])]
