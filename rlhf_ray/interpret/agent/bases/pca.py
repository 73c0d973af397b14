"""PCA: orthogonal directions of the largest variance. Scores have unit variance."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret import factors
from rlhf_ray.interpret.agent.bases.labels import Labels
from rlhf_ray.interpret.agent.bases.linear import Linear, halfway, spectrum


def fit(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Linear:
    """Fit at most ``count`` components to ``values`` ``[n, size]``: fewer if the values vary in fewer directions."""
    rank = len(spectrum(values)[0])
    found = factors.fit(values, min(count, rank), "pca", seed) if rank and count else None
    if found is None:
        return Linear("pca", [], values.mean(0), *(np.zeros(shape) for shape in _empty(values)))
    directions = found.components * np.where(_largest(found.components) < 0, -1.0, 1.0)[:, None]
    projected = (values - values.mean(0)) @ directions.T
    spread = np.maximum(projected.std(0), 1e-12)
    sources = found.transform(values) / spread * np.sign((found.components * directions).sum(1))
    # The rows that factors were fitted to may be a sample, with a mean of their own: scores are those around the mean of all.
    sources = sources - sources.mean(0)
    names = [f"principal component {at}" for at in range(len(found))]
    return Linear(
        "pca",
        names,
        values.mean(0),
        directions * spread[:, None],
        directions / spread[:, None],
        sources,
        halfway(sources),
    )


def _largest(directions: FloatArray) -> FloatArray:
    """Return each direction's entry of the largest size: its sign is made positive, so that a refit has the same one."""
    largest: FloatArray = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)[:, 0]
    return largest


def _empty(values: FloatArray) -> list[tuple[int, ...]]:
    return [(0, values.shape[1]), (0, values.shape[1]), (len(values), 0), (0,)]
