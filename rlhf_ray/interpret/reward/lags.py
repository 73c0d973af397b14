"""How many steps one series follows another within episodes: the one place that dates a reward, a cause or a jump.

A step's row holds what its transition shows: the reward that it pays, and the change from its state to its next state.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.intervals import CORRELATION, correlation_of, correlation_sums, jackknife_interval
from rlhf_ray.measure.statistics import constant

MOST = 10
"""Largest lag, in steps."""
STEPS = 5000
"""Most steps that a lag is measured on: its correlation is then known to about 0.03, and the permutations take a second."""
FEWEST = 20
"""Pairs of steps below which a correlation at a lag is not looked at: its standard error would be above 0.2."""
BETTER = 0.1
"""A lag is told if it correlates better than the same step by this much, or leaves half of the variance unexplained; with the whole
95 % interval of the gain above 0. Neighbouring steps of a smooth series correlate at other lags too, by less."""
PERMUTATIONS = 100


@dataclass(frozen=True)
class Lag:
    """How a series follows a cause.

    Attributes:
        steps: the lag: positive if the series comes after the cause; 0 unless another lag is clearly better.
        correlation: the correlation at that lag.
        low, high: its 95 % interval over episodes; NaN if they are too few.
        at_once: the correlation at the same step.
        chance: the 95 % quantile of the largest absolute correlation if the cause is moved at random within its episodes.
    """

    steps: int
    correlation: float
    low: float
    high: float
    at_once: float
    chance: float

    @property
    def significant(self) -> bool:
        """Whether the correlation is more than chance."""
        return abs(self.correlation) > self.chance

    @property
    def off(self) -> bool:
        """Whether the series clearly comes at another step than the cause."""
        return self.significant and self.steps != 0


def lag_of(
    series: FloatArray, cause: FloatArray | BoolArray, data: Transitions, rng: np.random.Generator, most: int = MOST
) -> Lag:
    """Find the lag at which a series follows a cause, by cross-correlation within episodes.

    Args:
        series: ``[n]``.
        cause: ``[n]``: an event (0 or 1) or a number, such as the true reward.
        data: the steps; the first `STEPS` count.
        rng: draws the permutations.
        most: largest lag.
    """
    data = data[:STEPS]
    late, early = (_standard(np.asarray(each[:STEPS], np.float64)) for each in (series, cause))
    lags = sorted(range(-most, most + 1), key=lambda lag: (abs(lag), lag))
    pairs = {lag: _pairs(data, lag) for lag in lags}

    moved = np.stack([early, *(_moved(early, data.episodes, rng) for _ in range(PERMUTATIONS))])
    all_found = np.stack([_correlations(late[after], moved[:, before]) for after, before in pairs.values()])
    found = all_found[:, 0]
    best = int(np.argmax(np.round(np.abs(found), 9)))
    after = pairs[lags[best]][0]  # also without the ends of episodes, which have no pair at the lag
    of_both = _correlations(late[after], early[after][None])[0] if len(after) else 0.0
    rows = pairs[0] if abs(found[0]) >= abs(of_both) else (after, after)
    at_lag, at_once = (_without(late, early, data.episodes, *of) for of in (pairs[lags[best]], rows))
    size, same = abs(found[best]), max(abs(found[0]), abs(of_both))
    sizes = np.unique(data.episodes, return_counts=True)[1]
    gain = jackknife_interval(size - same, np.abs(at_lag) - np.abs(at_once), sizes)[0]
    mirrored = found[lags.index(-lags[best])]  # as opposite as strong: a derivative of the cause, which has no delay
    derivative = lags[best] != 0 and -np.sign(found[best]) * mirrored > size - BETTER
    better = size >= same + BETTER or 1 - size**2 <= (1 - same**2) / 2
    if derivative or not better or (gain is not None and gain <= 0):
        best, at_lag = 0, _without(late, early, data.episodes, *pairs[0])
    ends = jackknife_interval(float(found[best]), at_lag, sizes, CORRELATION)
    low, high = (math.nan if end is None else end for end in ends)
    there, chance = float(found[best]), float(np.quantile(np.abs(all_found[:, 1:]).max(0), 0.95))
    return Lag(lags[best], there, low, high, float(found[0]), chance)


def _standard(values: FloatArray) -> FloatArray:
    return np.zeros(len(values)) if constant(values) else np.asarray((values - values.mean()) / values.std())


def _correlations(one: FloatArray, others: FloatArray) -> FloatArray:
    """Correlate ``one`` ``[n]`` with each of ``others`` ``[m, n]``; 0 where either is constant."""
    if not len(one):
        return np.zeros(len(others))
    one, others = one - one.mean(), others - others.mean(1, keepdims=True)
    spread = np.sqrt((one @ one) * np.einsum("ij,ij->i", others, others))
    return np.asarray(np.clip(others @ one / np.where(spread > 1e-9 * len(one), spread, np.inf), -1, 1))


def _pairs(data: Transitions, lag: int) -> tuple[IntArray, IntArray]:
    """Return the steps that come ``lag`` steps after others of their episode, and those others; none if they are few."""
    before = np.arange(max(0, -lag), min(len(data), len(data) - lag))
    after = before + lag
    same = (data.episodes[before] == data.episodes[after]) & (data.steps[after] - data.steps[before] == lag)
    return (after[same], before[same]) if same.sum() >= FEWEST else (after[:0], before[:0])


def _without(late: FloatArray, early: FloatArray, episodes: IntArray, after: IntArray, before: IntArray) -> FloatArray:
    """Return the correlation without each episode, ``[episodes]``."""
    names, which = np.unique(episodes, return_inverse=True)
    sums = np.zeros((len(names), 6))
    if len(after):
        of = correlation_sums(late[after], early[before], which[after])
        sums[: len(of)] = of
    return correlation_of(sums.sum(0) - sums)


def _moved(values: FloatArray, episodes: IntArray, rng: np.random.Generator) -> FloatArray:
    """Rotate each episode, so that it keeps its own rhythm; permute it if it is too short for that."""
    bounds = np.flatnonzero(np.diff(episodes, prepend=episodes[:1] - 1, append=episodes[-1:] + 1))
    parts = []
    for start, end in itertools.pairwise(bounds):
        part, n = values[start:end], end - start
        parts.append(rng.permutation(part) if n <= 3 * MOST else np.roll(part, int(rng.integers(MOST + 1, n - MOST))))
    return np.concatenate(parts)
