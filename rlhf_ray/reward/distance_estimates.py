"""An estimate of a distance of two rewards, with its interval over episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.intervals import ROUNDING, SHARE, Bounds, blocks, jackknife_interval


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over episodes.

    Attributes:
        value: the estimate.
        low: lower end; NaN if there are too few episodes for an interval.
        high: upper end, likewise.
        steps: number of recorded steps that it rests on.
        refused: why there is no estimate; value, low and high are NaN then.
    """

    value: float
    low: float
    high: float
    steps: int
    refused: str = ""

    def text(self, digits: int = 2) -> str:
        """Write the value with its interval; a dash if there is none."""
        if self.refused:
            return "–"
        if math.isnan(self.low):
            return f"{self.value:.{digits}f} (too few episodes: no interval)"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def __str__(self) -> str:
        return self.text(3)


def refused(steps: int, why: str) -> Estimate:
    """Return no estimate, with the reason."""
    return Estimate(math.nan, math.nan, math.nan, steps, why)


def estimate(
    value: float | Array, without: Array, sizes: Array, steps: int, exact: bool, bounds: Bounds = SHARE
) -> Estimate:
    """Give ``value`` its interval; ``exact``: it follows from a reward without direction. ``without``: without each episode.

    A value at a bound is exact, too: all steps agree.
    """
    found = float(value)
    if exact or min(abs(found - bound) for bound in bounds) <= ROUNDING:
        return Estimate(found, found, found, steps)
    low, high = jackknife_interval(found, without, sizes, bounds)
    return Estimate(found, math.nan if low is None else low, math.nan if high is None else high, steps)


def without(steps: Transitions) -> tuple[FloatArray, IntArray]:
    """Return weights 0 or 1 that leave out one block of episodes each, ``[blocks, n]``, and the steps of each block."""
    block = blocks(steps.episodes)
    return (block != np.arange(block.max(initial=0) + 1)[:, None]).astype(np.float64), np.bincount(block)
