"""Non-negative factors (NMF), and the weights of at least 0 that go with them."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from rlhf_ray.data.arrays import FloatArray

MOST = 20_000
"""Rows that factors are fitted to."""


def some_of(rows: FloatArray, seed: int) -> FloatArray:
    """Return at most `MOST` rows, drawn by the seed, in their order."""
    if len(rows) <= MOST:
        return rows
    return rows[np.sort(np.random.default_rng(seed).choice(len(rows), MOST, replace=False))]


def nonnegative_factors(rows: FloatArray, count: int, seed: int) -> tuple[FloatArray, float]:
    """Return factors ``[count, size]`` of rows of at least 0, and the share of the sum of squares that they reproduce.

    There are no more factors than rows or columns.

    Raises:
        ValueError: a value is below 0.
    """
    if rows.min(initial=0.0) < 0.0:
        raise ValueError("NMF needs values of 0 or more.")
    model = NMF(min(count, *rows.shape), init="nndsvda", random_state=seed, max_iter=400, tol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = model.fit_transform(rows) @ model.components_
    total = float((rows**2).sum())
    explained = 1.0 - float(((rows - fitted) ** 2).sum()) / total if total > 1e-12 else 1.0
    return np.asarray(model.components_), explained


def nonnegative_weights(rows: FloatArray, components: FloatArray) -> FloatArray:
    """Return the weights ``[n, factors]`` of at least 0 that reproduce rows ``[n, channels]`` best, in least squares.

    They are exact, so that they depend on nothing but the row and the components: coordinate descent stops at a tolerance.
    """
    if not len(components) or not len(rows):
        return np.zeros((len(rows), len(components)))
    # By the normal equations: the problem has one row for each factor, however many channels there are.
    gram = components @ components.T + 1e-12 * max(float((components**2).sum()), 1e-12) * np.eye(len(components))
    upper = np.linalg.cholesky(gram).T
    targets = solve_triangular(upper, components @ rows.T, trans="T")
    weights: FloatArray = np.array([nnls(upper, target)[0] for target in targets.T]).reshape(len(rows), len(components))
    return weights
