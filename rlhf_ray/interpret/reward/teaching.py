"""Whether a policy that was taught by a reward gets what there is to gain, from returns by start; and a reward's level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.measure.intervals import MeanEstimate

GOOD, GOOD_PPO = 0.9, 0.7
"""A policy does well if it gets this share of what the best one gains over random actions; less with PPO, which is noisy."""
SURE = 2.0
"""Standard errors within which a mean may be wrong."""
RELATED = 0.5
"""Linear correlation with the true reward from which a constant that mends is called a shifted level."""
SHIFTED = 0.1
"""A level is told from this share of the true reward's range on."""
CONSTANTS = 64
"""Constants that are searched in a table, before the ends of the interval that mends are bisected."""
HALVINGS = 12

Interval = tuple[float | None, float | None]
"""From and to; None: there is no such end."""


@dataclass(frozen=True)
class LevelFit:
    """The fit ``learned = factor * true + level``.

    Attributes:
        factor, level: on the learned reward's scale.
        correlation: linear correlation; None if the true reward is constant.
        true_range: largest less smallest true reward.
    """

    factor: float
    level: float
    correlation: float | None
    true_range: float

    @property
    def in_true_units(self) -> float | None:
        """The level in units of the true reward; None if the rewards are unrelated."""
        return self.level / self.factor if self.factor > 0 else None

    @property
    def related(self) -> bool:
        """Whether the rewards are `RELATED`, as far as can be told."""
        return self.correlation is None or self.correlation >= RELATED

    def is_level(self, mends: Interval | None) -> bool:
        """Return whether constants that mend are a level: the rewards are related, and not any constant, however small, mends."""
        return mends is not None and self.related and (self.shifted or 0.0 not in mends)

    @property
    def shifted(self) -> bool:
        """Whether there is a level worth telling."""
        level = self.in_true_units
        return level is not None and self.related and abs(level) >= SHIFTED * self.true_range


def well_taught(chance: FloatArray, best: FloatArray, taught: FloatArray) -> bool | None:
    """Return whether a policy gets `GOOD_PPO` of the gain of the best one over random actions; None if that is not sure.

    Args:
        chance: true returns of random actions, by start, ``[episodes]``.
        best: those of the policy that was trained on the true reward.
        taught: those of the policy to judge.
    """
    share = share_of_gain(chance, best, taught)
    if share.low is None or share.high is None or share.low <= GOOD_PPO < share.high:
        return None
    return bool(share.low > GOOD_PPO)


def share_of_gain(chance: FloatArray, best: FloatArray, taught: FloatArray) -> MeanEstimate:
    """Return the share of the gain over random actions that a policy gets, by start, with its interval (Fieller 1954).

    The interval holds the shares s for which the mean of ``taught - chance - s * (best - chance)`` is within `SURE` standard errors
    of 0: those that these returns can't rule out. Without a sure gain it has no bounds.
    """
    more, most = taught - chance, best - chance
    mean, gain = float(more.mean()), float(most.mean())
    covariance = np.cov(more, most) / len(most)
    a, b = gain**2 - SURE**2 * covariance[1, 1], mean * gain - SURE**2 * covariance[0, 1]
    c = mean**2 - SURE**2 * covariance[0, 0]
    if not gains(best, chance) or a <= 0:  # PPO did not learn: it can't tell what there is to gain
        return MeanEstimate(mean / gain if gain > 0 else 0.0, None, None)
    half = float(np.sqrt(max(b**2 - a * c, 0.0)))
    return MeanEstimate(mean / gain, (b - half) / a, (b + half) / a)


def gains(best: FloatArray, chance: FloatArray) -> bool:
    """Return whether a policy surely gets more than random actions, by start."""
    return bool((best - chance).mean() > SURE * standard_error(best - chance))


def standard_error(values: FloatArray) -> float:
    """Return the standard error of the mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def highest_return(paid: FloatArray, terminated: BoolArray, longest: int) -> float | None:
    """Return the highest return that an episode can have, as far as the steps show; None if they don't.

    Where only the last step of an episode pays, that is all that it can have; where no episode ends early, the highest reward at
    each of the steps of the longest.
    """
    highest = float(paid.max())
    if terminated.any():
        return highest if highest > 0 and not (paid[~terminated] > 0).any() else None
    return highest * longest if highest != 0 else None


def mending(
    share: Callable[[float], float], low: float, high: float, gamma: float, level: float
) -> tuple[Interval | None, float]:
    """Search the constants that mend a reward when subtracted.

    A policy is indifferent between ending with reward e and going on with r for ever at the constant (r - (1 - gamma) e) / gamma:
    outside the range of such values, all constants make the same policy optimal.

    Args:
        share: maps a constant to the share of the possible gain that the reward less the constant teaches.
        low: smallest reward.
        high: largest reward.
        gamma: discount.
        level: the constant to look at besides a grid.

    Returns:
        From and to of the constants nearest to ``level`` with a share of at least `GOOD`, or None if there are none; and the
        largest share found.
    """
    beyond = (1 - gamma) / gamma * (high - low) + 1e-3 * max(high - low, abs(high), abs(low), 1e-12)
    grid = np.unique([*np.linspace(low - beyond, high + beyond, CONSTANTS), level])
    shares = np.array([share(float(constant)) for constant in grid])
    good = np.flatnonzero(shares >= GOOD)
    if not len(good):
        return None, float(shares.max())
    first = last = int(good[np.argmin(np.abs(grid[good] - level))])
    while first > 0 and shares[first - 1] >= GOOD:
        first -= 1
    while last < len(grid) - 1 and shares[last + 1] >= GOOD:
        last += 1

    def edge(inside: float, outside: float) -> float:
        step = abs(inside - outside)
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if share(middle) >= GOOD else (inside, middle)
        return inside if abs(inside) > step / 2 ** (HALVINGS - 1) else 0.0  # any constant on this side of 0 mends it

    start = float(edge(grid[first], grid[first - 1])) if first > 0 else None
    end = float(edge(grid[last], grid[last + 1])) if last < len(grid) - 1 else None
    return (start, end), float(shares.max())
