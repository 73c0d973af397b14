"""ICA (FastICA; Hyvärinen 1999): directions whose scores are as independent as possible. Scores have unit variance."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret import factors
from rlhf_ray.interpret.agent.bases import pca
from rlhf_ray.interpret.agent.bases.labels import Labels
from rlhf_ray.interpret.agent.bases.linear import Linear, halfway


def fit(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Linear:
    """Fit at most ``count`` components to ``values`` ``[n, size]``, in the space of as many principal components.

    One scaling for everything: the whitening is that of the PCA basis, fitted to the same rows as the rotation after it. Components
    are ordered by the variance that they explain; their sign makes scores skewed to the right.
    """
    white = pca.fit(values, count, seed)
    if not len(white):
        return Linear("ica", [], white.center, white.patterns, white.filters, white.sources, white.midpoints)
    some = white.sources
    if len(some) > factors.MOST:
        some = some[np.sort(np.random.default_rng(seed).choice(len(some), factors.MOST, replace=False))]
    rotation = _rotation(some, seed)
    sources = white.sources @ rotation.T
    skewed = (sources**3).mean(0)
    rotation = rotation * np.where(skewed < 0, -1.0, 1.0)[:, None]
    patterns, filters = rotation @ white.patterns, rotation @ white.filters
    order = np.argsort(-np.linalg.norm(patterns, axis=1), kind="stable")
    sources = white.sources @ rotation[order].T
    names = [f"independent component {at}" for at in range(len(order))]
    return Linear("ica", names, white.center, patterns[order], filters[order], sources, halfway(sources))


def _rotation(white: FloatArray, seed: int) -> FloatArray:
    """Return the orthogonal matrix ``[k, k]`` from white scores ``[n, k]`` to independent ones."""
    if white.shape[1] == 1 or len(white) < 3:
        return np.eye(white.shape[1])
    model = FastICA(whiten=False, random_state=seed, max_iter=400, tol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(white)
    left, _, right = np.linalg.svd(
        np.asarray(model.components_)
    )  # the nearest rotation: FastICA's is one up to rounding
    rotation: FloatArray = left @ right
    return rotation
