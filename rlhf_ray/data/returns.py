"""Comparing returns: sums of rewards whose difference is within the rounding of floating-point numbers are equal.

Sums of the same rewards in another order differ in their last bits: -0.1 nine times and 1 once are about 0.1, wherever the 1 is.
Every part that compares true returns, or other numbers as teachers do, asks here.
"""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray

SPREAD_QUANTILE = 0.95
"""Which quantile of the distances of random pairs is their spread."""

_SPREAD = 256
"""Number of returns of which all pairs are looked at."""

_EXTRA = 8
"""Roundings besides those of a sum's own terms: of weights, means and thresholds."""


def differences(left: FloatArray, right: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """Return how much larger each return on the left is, exactly 0 where the two are equal but for rounding.

    Args:
        left: rewards ``[n, length]``, of any float dtype.
        right: the same.
        weights: ``[length]``: weight of each step; None for 1.

    Returns:
        ``[n]`` float64; NaN where a reward is.
    """
    result = _weighed(left, weights).sum(1) - _weighed(right, weights).sum(1)
    error = rounding(left, weights) + rounding(right, weights)
    return np.asarray(np.where(np.abs(result) <= error, 0.0, result))


def rounding(rewards: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """Return a bound of the error of each return, ``[n]`` float64.

    Each reward may be rounded, and so may each partial sum of float64 numbers: an error of ``n * eps * sum(abs(r))`` (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2). Rewards which all are float32 numbers are rounded to
    these, except for whole numbers.

    Args:
        rewards: ``[n, length]``, of any float dtype.
        weights: ``[length]``: weight of each step; None for 1.
    """
    sizes = np.abs(_weighed(rewards, weights))
    values = np.asarray(rewards, np.float64)
    with np.errstate(over="ignore"):
        single = (values == values.astype(np.float32)).all(1)
    of_single = np.where(values == np.round(values), 0.0, sizes).sum(1) * np.finfo(np.float32).eps
    terms = values.shape[1] + _EXTRA
    return np.asarray(terms * np.finfo(np.float64).eps * sizes.sum(1) + np.where(single, of_single, 0.0))


def settled(rewards: FloatArray) -> FloatArray:
    """Return the returns ``[n]`` of rewards ``[n, length]`` without digits that are rounding only: equal ones are the same."""
    returns: FloatArray = np.asarray(rewards, np.float64).sum(1)
    error = float(np.nanmax(rounding(rewards), initial=0.0))
    if not 0 < error < np.inf:
        return returns
    grain = 10.0 ** np.ceil(np.log10(error) + 1)
    return np.asarray(np.round(returns / grain) * grain)


def spread_of(returns: FloatArray) -> float:
    """Return how far apart returns are: of 100 random pairs of them, 95 are closer.

    Exact for up to `_SPREAD` returns; of more, that many at even distances in ascending order stand for all. So it draws nothing,
    and the order of the returns has no effect.

    Args:
        returns: ``[n]``, of any float dtype.

    Returns:
        0 or more, in the unit of the returns; 0 for fewer than two; NaN if a return is.
    """
    ordered = np.sort(np.asarray(returns, np.float64))
    if len(ordered) < 2:
        return 0.0
    if len(ordered) > _SPREAD:
        ordered = ordered[((np.arange(_SPREAD) + 0.5) * len(ordered) / _SPREAD).astype(np.int64)]
    left, right = np.triu_indices(len(ordered), 1)
    return float(np.quantile(ordered[right] - ordered[left], SPREAD_QUANTILE))


def _weighed(rewards: FloatArray, weights: FloatArray | None) -> FloatArray:
    values: FloatArray = np.asarray(rewards, np.float64)
    return values if weights is None else np.asarray(values * weights)
