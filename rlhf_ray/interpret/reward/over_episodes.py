"""A figure of steps with its interval over episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.intervals import ANY, Bounds, MeanEstimate, jackknife_rows

EPISODES = 10
"""Whole episodes to look at, at least; else steps of all: a few episodes show what they have in common."""


@dataclass(frozen=True)
class OverEpisodes:
    """A figure with its 95 % interval over episodes (`rlhf_ray.measure.intervals`); NaN bounds if they are too few for one."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: MeanEstimate) -> OverEpisodes:
        """Return an estimate as such a figure."""
        low, high = (np.nan if end is None else end for end in (estimate.low, estimate.high))
        return cls(estimate.mean, low, high)

    def beyond(self, bound: float) -> bool | None:
        """Whether the value is above ``bound``; None if the bound lies within the interval, or there is no interval."""
        return None if np.isnan(self.low) or self.low <= bound < self.high else bool(self.low > bound)

    def below(self, bound: float) -> bool:
        """Whether the value is below ``bound``, with its whole interval."""
        return bool(self.high < bound)

    def __str__(self) -> str:
        bounds = " (too few episodes: no interval)" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}{bounds}"


def over_episodes(figure: Callable[[IntArray], float], episodes: IntArray, bounds: Bounds = ANY) -> OverEpisodes:
    """Compute ``figure(index of steps)`` for all steps, with its interval over episodes; ``bounds``: of the figure."""
    return OverEpisodes.of(jackknife_rows(figure, episodes, bounds))


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
