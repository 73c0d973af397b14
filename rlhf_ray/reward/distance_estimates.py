"""What estimates of distances of two rewards are made of: intervals over episodes, and features of values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.intervals import ROUNDING, SHARE, Bounds, blocks, jackknife_interval

FEATURES = 128
"""Random features of the value function in sampled STARC, if observations don't repeat; fewer if there are few steps."""
STEPS_PER_VALUE = 10
"""Least number of steps per fitted weight of the value function. A fit of k weights to n steps takes a share of k / n of whatever
is no value, too: at ten, a tenth of the reward. With as many weights as steps, any reward would be all value."""


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


def features(values: Array, space: gym.Space[Any], like: Array) -> FloatArray:
    """Return observations or actions as vectors ``[n, k]``: one-hot if they are numbers, else divided by the deviation of ``like``.

    ``like`` is one sample for all that is compared: states and next states of one scale each would be two functions of a state.
    """
    if isinstance(space, gym.spaces.Discrete):
        return np.eye(int(space.n))[np.asarray(values, np.int64) - int(space.start)]
    flat, known = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (values, like))
    deviation = known.std(0)
    return np.asarray(flat / np.where(deviation > 1e-12, deviation, 1))


def fewest_values(pool: Transitions, space: gym.Space[Any]) -> int:
    """Return the least number of weights that values need: one for each observation, or for each feature and a constant."""
    both = np.concatenate([pool.observations, pool.next_observations]).reshape(2 * len(pool), -1)
    width = int(space.n) if isinstance(space, gym.spaces.Discrete) else both.shape[1]
    return min(len(np.unique(both, axis=0)), min(width, FEATURES) + 1)


def value_features(
    pool: Transitions, space: gym.Space[Any], rng: np.random.Generator
) -> tuple[Transitions, FloatArray, FloatArray]:
    """Return the usable steps with features of their observations and next observations."""
    flat = [
        np.asarray(array, np.float64).reshape(len(pool), -1) for array in (pool.observations, pool.next_observations)
    ]
    names, number = np.unique(np.concatenate(flat), axis=0, return_inverse=True)
    before, after = number.reshape(2, -1)
    most = len(pool) // STEPS_PER_VALUE
    if len(names) <= max(1, most):
        kept = np.ones(len(pool), bool)
        while True:  # the value of an observation that no step leaves is unknown
            left = np.zeros(len(names), bool)
            left[before[kept]] = True
            still = kept & (pool.terminated | left[after])
            if still.sum() == kept.sum():
                break
            kept = still
        if kept.any():
            identity = np.eye(len(names))[:, np.unique(before[kept])]
            return pool[kept], identity[before[kept]], identity[after[kept]]
    vectors = [features(array, space, pool.observations) for array in (pool.observations, pool.next_observations)]
    width = vectors[0].shape[1]
    linear = width < min(FEATURES + 1, most)
    count = max(0, min(FEATURES, most - 1 - width * linear))
    directions, phases = rng.normal(size=(width, count)) / np.sqrt(width), rng.uniform(0, 2 * np.pi, count)
    made = [
        np.concatenate([np.cos(array @ directions + phases), np.ones((len(array), 1))] + [array] * linear, 1)
        for array in vectors
    ]
    return pool, made[0], made[1]
