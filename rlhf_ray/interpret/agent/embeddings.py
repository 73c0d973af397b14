"""Embeddings in two dimensions, for pictures: t-SNE and UMAP. Distances between far points mean nothing in either."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.manifold import TSNE

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.clusters import principal

MOST = 1500
"""Rows that are worth a picture."""


def tsne(values: FloatArray, seed: int = 0, perplexity: float = 30.0) -> FloatArray:
    """Return t-SNE's positions ``[n, 2]`` of ``values`` ``[n, size]``, started at the first two principal components."""
    points = principal(values)
    if len(points) < 5 or not points.shape[1]:
        return _plain(points)
    start = _plain(points) / max(float(points[:, 0].std()), 1e-12) * 1e-4
    model = TSNE(2, perplexity=min(perplexity, (len(points) - 1) / 3), init=start, random_state=seed, max_iter=500)
    return np.asarray(model.fit_transform(points), np.float64)


def umap(values: FloatArray, seed: int = 0, neighbours: int = 15) -> FloatArray:
    """Return UMAP's positions ``[n, 2]`` of ``values`` ``[n, size]``.

    Raises:
        SettingError: umap-learn isn't installed.
    """
    try:
        from umap import UMAP
    except ImportError:
        raise SettingError("UMAP needs umap-learn: install rlhf-ray[interpret], or use t-SNE.") from None
    points = principal(values)
    if len(points) < 5 or not points.shape[1]:
        return _plain(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed means one thread
        model = UMAP(n_neighbors=min(neighbours, len(points) - 1), random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), np.float64)


def _plain(points: FloatArray) -> FloatArray:
    """Return the first two columns, padded with zeros."""
    return np.pad(points[:, :2], [(0, 0), (0, 2 - min(2, points.shape[1]))])
