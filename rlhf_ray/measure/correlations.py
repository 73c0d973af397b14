"""Correlation of a learned reward with the true one on fragments, which hold both: of single steps, and of whole fragments.

A learned reward has no scale and no origin of its own, so correlations don't depend on them. The correlation of returns is what
comparisons teach: shaping lowers that of single steps, but hardly that of returns. `sampled_distances` ignores shaping altogether.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import settled
from rlhf_ray.measure.intervals import MeanEstimate, linear_correlation, rank_correlation


@dataclass(frozen=True)
class RewardCorrelations:
    """Correlations of a learned with the true reward; NaN where one of them is constant or unknown.

    Attributes:
        fragments: number of fragments.
        steps_linear, steps_rank: Pearson's and Spearman's correlation of the rewards of single steps.
        returns_linear, returns_rank: the same of undiscounted returns of whole fragments.
    """

    fragments: int
    steps_linear: MeanEstimate
    steps_rank: MeanEstimate
    returns_linear: MeanEstimate
    returns_rank: MeanEstimate


def reward_correlations(learned: Array, true: Array, intervals: bool = True) -> RewardCorrelations:
    """Correlate a learned reward with the true one.

    Args:
        learned: ``[fragments, length]``.
        true: ``[fragments, length]``.
        intervals: whether to compute intervals, over fragments.

    Raises:
        ValueError: the shapes differ.
    """
    a, b = np.asarray(learned, np.float64), np.asarray(true, np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"learned and true must be [fragments, length] each; got shapes {a.shape} and {b.shape}.")
    group = np.repeat(np.arange(len(a)), a.shape[1])
    return RewardCorrelations(
        len(a),
        linear_correlation(a, b, group, interval=intervals),
        rank_correlation(a, b, group, interval=intervals),
        linear_correlation(settled(a), settled(b), None, interval=intervals),
        rank_correlation(settled(a), settled(b), None, interval=intervals),
    )
