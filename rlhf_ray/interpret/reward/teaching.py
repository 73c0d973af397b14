"""Whether a policy that was taught by a reward gets what there is to gain, from returns by start; and a reward's level."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_ray.data.arrays import BoolArray, FloatArray

GOOD, GOOD_PPO = 0.9, 0.7
"""A policy does well if it gets this share of what the best one gains over random actions; less with PPO, which is noisy."""
SURE = 2.0
"""Standard errors within which a mean may be wrong."""
RELATED = 0.5
"""Linear correlation with the true reward from which a constant that mends is called a shifted level."""
SHIFTED = 0.1
"""A level is told from this share of the true reward's range on."""


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
    if not gains(best, chance):  # PPO did not learn: it can't tell what there is to gain
        return None
    beyond = taught - chance - GOOD_PPO * (best - chance)
    error = standard_error(beyond)
    return None if abs(float(beyond.mean())) < SURE * error else bool(beyond.mean() >= 0)


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
