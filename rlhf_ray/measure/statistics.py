"""Statistics of two samples, once for the whole package: ranks, correlations, areas under the ROC curve, false discovery.

Conventions: equal values share their mean rank and ties count half. A figure that the data don't define (a constant sample, values
that are NaN or infinite, a missing class) is ``undefined``, NaN unless the caller says what stands for it. Intervals are in
`rlhf_ray.measure.intervals`.
"""

from __future__ import annotations

import math

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray

CONSTANT = 1e-9
"""Values whose range is below this share of the largest one count as constant: they differ by rounding."""


def constant(values: Array) -> bool:
    """Return whether values ``[n]`` are all the same but for rounding, or not all finite."""
    sample = np.asarray(values, np.float64)
    return bool(not np.isfinite(sample).all() or not sample.size or np.ptp(sample) <= CONSTANT * np.abs(sample).max())


def ranks(values: Array) -> FloatArray:
    """Return ranks from 1, ``[n]``. Equal values share their mean rank; NaN stays NaN.

    As `scipy.stats.rankdata`, which takes a second to import; fits need not wait for it.
    """
    sample = np.asarray(values, np.float64).ravel()
    _, place, counts = np.unique(sample, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.where(np.isnan(sample), math.nan, mean_ranks[place.ravel()])


def pearson(first: Array, second: Array, undefined: float = math.nan) -> float:
    """Return Pearson's correlation of all elements; ``undefined`` if one sample is constant."""
    a, b = (np.asarray(sample, np.float64).ravel() for sample in (first, second))
    if constant(a) or constant(b):
        return undefined
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1.0, 1.0))


def spearman(first: Array, second: Array, undefined: float = math.nan) -> float:
    """Return Spearman's correlation of all elements; ``undefined`` if one sample is constant."""
    if constant(first) or constant(second):
        return undefined
    return pearson(ranks(first), ranks(second), undefined)


def auc(scores: Array, positive: BoolArray, undefined: float = math.nan) -> float:
    """Return the probability that a positive scores higher than a negative: the area under the ROC curve.

    Args:
        scores: ``[n]``.
        positive: ``[n]``: which are positives.
        undefined: what to return if one kind is missing, or a score is NaN.
    """
    yes = np.asarray(positive, bool)
    ones, zeros = int(yes.sum()), int((~yes).sum())
    if not ones or not zeros or np.isnan(scores).any():
        return undefined
    return float((ranks(scores)[yes].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def discoveries(p: FloatArray, rate: float) -> BoolArray:
    """Return which p-values, of any shape, are significant at a false discovery rate (Benjamini and Hochberg 1995)."""
    from scipy.stats import false_discovery_control

    if not p.size:
        return np.zeros(p.shape, bool)
    return np.asarray(false_discovery_control(p, axis=None).reshape(p.shape) <= rate)
