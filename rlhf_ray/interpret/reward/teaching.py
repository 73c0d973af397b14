"""Whether a policy that was taught by a reward gets what there is to gain, from returns by start."""

from __future__ import annotations

from rlhf_ray.data.arrays import BoolArray, FloatArray

GOOD, GOOD_PPO = 0.9, 0.7
"""A policy does well if it gets this share of what the best one gains over random actions; less with PPO, which is noisy."""
SURE = 2.0
"""Standard errors within which a mean may be wrong."""


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
