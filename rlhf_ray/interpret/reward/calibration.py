"""How well a reward predicts the true rewards in the data, beside what a constant would, and its calibration by reward level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.supervised.report import RewardLevel, levels_of, measures


@dataclass(frozen=True)
class Agreement:
    """How a reward agrees with the true one.

    Attributes:
        steps: number of steps with a known true reward.
        errors: figures of `rlhf_ray.reward.supervised.report.measures`, of the reward as it is.
        scale, offset: the line ``scale * reward + offset`` that fits the true rewards best. A reward learned from comparisons has
            an arbitrary scale, so that only its error after this line means something.
        error_of_line: mean squared error after the line.
        of_returns: correlation of the episodes' returns; NaN with fewer than 3 episodes.
        levels: mean reward by level of the true reward.
    """

    steps: int
    errors: dict[str, float]
    scale: float
    offset: float
    error_of_line: float
    of_returns: float
    levels: tuple[RewardLevel, ...]

    @property
    def explained(self) -> float:
        """Share of the true reward's variance that the reward explains after the line; NaN if the true reward is constant."""
        constant = self.errors["constant_error"]
        return 1 - self.error_of_line / constant if constant > 0 else math.nan


def known(steps: Transitions) -> Transitions:
    """Return the steps whose true reward is known."""
    return steps[np.isfinite(steps.rewards)]


def agreement(reward: RewardFunction, steps: Transitions) -> Agreement:
    """Compare ``reward`` with the true rewards of ``steps``, which are known.

    Raises:
        ValueError: there are no steps.
    """
    if not len(steps):
        raise ValueError("There are no steps with a known true reward.")
    given, true = reward.of(steps), steps.rewards
    spread = float(given.var()) if np.ptp(given) > 0 else 0.0
    scale = float(((given - given.mean()) * (true - true.mean())).mean() / spread) if spread > 0 else 0.0
    offset = float(true.mean() - scale * given.mean())
    line = scale * given + offset
    return Agreement(
        steps=len(steps),
        errors=measures(given, true, float(true.mean())),
        scale=scale,
        offset=offset,
        error_of_line=float(np.square(line - true).mean()),
        of_returns=_of_returns(given, true, steps),
        levels=levels_of(given, true, np.zeros(0)),
    )


def _of_returns(given: FloatArray, true: FloatArray, steps: Transitions) -> float:
    _, numbers = np.unique(steps.episodes, return_inverse=True)
    sums = [np.bincount(numbers, of).astype(np.float64) for of in (given, true)]
    return pearson(sums[0], sums[1]) if len(sums[0]) >= 3 else math.nan
