"""Components without labels: PCA, ICA and NMF. Scores have unit variance; of NMF, a mean square of 1."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.decomposition import PCA, FastICA
from sklearn.exceptions import ConvergenceWarning

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.directions.directions import (
    Directions,
    halfway,
    nonnegative_factors,
    nonnegative_weights,
    some_of,
)
from rlhf_ray.interpret.directions.labelled import Labels


def fit_pca(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Directions:
    """Fit at most ``count`` orthogonal directions of the largest variance: fewer if the values vary in fewer directions."""
    center, count = values.mean(0), min(count, len(spectrum(values)[0]))
    directions = np.zeros((0, values.shape[1]))
    if count:
        some = some_of(values, seed)
        directions = PCA(min(count, *some.shape), random_state=seed).fit(some).components_
    # The largest entry's sign is made positive, so that a refit has the same one.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1) if count else directions[:, :1]
    directions = directions * np.where(largest < 0, -1.0, 1.0)
    projected = (values - center) @ directions.T
    spread = np.maximum(projected.std(0), 1e-12)
    sources = projected / spread
    names = [f"principal component {number}" for number in range(len(directions))]
    patterns, filters = directions * spread[:, None], directions / spread[:, None]
    return Directions("pca", names, center, patterns, filters, sources, halfway(sources))


def fit_ica(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Directions:
    """Fit at most ``count`` directions whose scores are as independent as possible (FastICA; Hyvärinen 1999).

    One scaling for everything: the whitening is that of PCA, fitted to the same rows as the rotation after it. Components are
    ordered by the variance that they explain; their sign makes scores skewed to the right.
    """
    white = fit_pca(values, count, seed)
    rotation = _rotation(some_of(white.sources, seed), seed)
    sources = white.sources @ rotation.T
    rotation = rotation * np.where((sources**3).mean(0) < 0, -1.0, 1.0)[:, None]
    patterns, filters = rotation @ white.patterns, rotation @ white.filters
    order = np.argsort(-np.linalg.norm(patterns, axis=1), kind="stable")
    sources = white.sources @ rotation[order].T
    names = [f"independent component {number}" for number in range(len(order))]
    return Directions("ica", names, white.center, patterns[order], filters[order], sources, halfway(sources))


def _rotation(white: FloatArray, seed: int) -> FloatArray:
    """Return the orthogonal matrix ``[k, k]`` from white scores ``[n, k]`` to independent ones."""
    if white.shape[1] < 2 or len(white) < 3:
        return np.eye(white.shape[1])
    model = FastICA(whiten=False, random_state=seed, max_iter=400, tol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(white)
    left, _, right = np.linalg.svd(np.asarray(model.components_))  # FastICA's is the nearest rotation up to rounding
    return np.asarray(left @ right)


def fit_nmf(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Directions:
    """Fit at most ``count`` additive parts, counted from the lowest value of each unit, because memory is negative too."""
    lowest = values.min(0)
    patterns, _ = nonnegative_factors(some_of(values - lowest, seed), count, seed)
    patterns = patterns[np.linalg.norm(patterns, axis=1) > 1e-9]
    sources = nonnegative_weights(values - lowest, patterns)
    spread = np.sqrt((sources**2).mean(0))
    order = np.argsort(-spread * np.linalg.norm(patterns, axis=1), kind="stable")
    order = order[spread[order] > 1e-9]
    names = [f"additive component {number}" for number in range(len(order))]
    patterns, sources = patterns[order] * spread[order, None], sources[:, order] / spread[order]
    # The pseudo-inverse is exact where all scores are above 0.
    return Directions("nmf", names, lowest, patterns, np.linalg.pinv(patterns).T, sources, halfway(sources))


def spectrum(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return standard deviations ``[r]`` and unit directions ``[r, size]`` of the principal axes that vary, the largest first."""
    centred = np.asarray(values, np.float64) - np.mean(values, 0)
    few = len(centred) < centred.shape[1]  # then the smaller matrix, of rows, has the same spectrum
    lengths, axes = np.linalg.eigh((centred @ centred.T if few else centred.T @ centred) / max(len(centred), 1))
    spread, axes = np.sqrt(np.maximum(lengths[::-1], 0.0)), axes.T[::-1]
    varying = spread > 1e-6 * max(float(spread.max(initial=0.0)), 1e-6)
    spread, axes = spread[varying], axes[varying]
    if few:
        axes = axes @ centred
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    return spread, axes


def enough_of(spread: FloatArray, share: float = 0.95) -> int:
    """Return the least number of principal components, of their standard deviations, that explain a share of the variance."""
    if not len(spread):
        return 1
    explained = np.cumsum(spread**2) / np.sum(spread**2)
    return min(int(np.searchsorted(explained, share - 1e-12)) + 1, len(spread))
