"""How far apart the true returns of pairs are, as a share of how far apart those of the newest fragments are."""

from __future__ import annotations

import math

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs, differences, spread_of
from rlhf_ray.teachers.teacher import true_returns


def signed_margins(pairs: Pairs) -> FloatArray:
    """Return each pair's difference of true returns, left minus right, over their spread.

    The spread is that of the fragments that the pairs were drawn from (`Pairs.recent_spread`; else of the pairs' own fragments). So
    a margin has no unit, and 1 in size for a pair that 95 of 100 random pairs are closer than.

    Returns:
        ``[n]`` float64: exactly 0 where the returns differ by rounding only; infinite where they differ and the spread is 0.

    Raises:
        ValueError: a step has no true reward.
    """
    left, right = true_returns(pairs)
    margins = differences(pairs.left.rewards, pairs.right.rewards)
    spread = pairs.recent_spread
    if spread is None or not math.isfinite(spread):
        spread = spread_of(np.concatenate([left, right]))
    with np.errstate(divide="ignore", over="ignore"):
        return np.divide(margins, spread, out=np.zeros(len(margins)), where=margins != 0)
