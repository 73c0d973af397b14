"""Controls: random directions whose removal takes as much variance as that of components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.directions.components import spectrum
from rlhf_ray.interpret.directions.directions import Directions, halfway

COUNT = 10
"""Random directions."""
AS_MUCH = 0.9
"""Share of the wanted variance from which on directions carry as much: variances of a few hundred steps err by as much."""
STEEPEST = 12.0
"""Bound of the tilt towards directions of large or small variance: at this one, all are nearly the first axis."""


def random_bases(
    basis: Directions, components: Sequence[int], values: FloatArray, count: int = COUNT, seed: int = 0
) -> list[Directions]:
    """Return bases of random directions that stand in for some components: removed, they take as much variance from the values.

    They lie in the space that the values ``[n, size]`` vary in, and their scores are uncorrelated with the components': removing
    them leaves what the components say as it is. Their patterns have the length of the first component's, so that a step of a
    score moves the values as far. Where no single direction carries as much variance as the components, a basis has as few
    directions as do together; where all others together carry less, the first basis has all of them, and the others random halves
    (`removed_variance` tells how much each takes). There are ``count``; one if there is one other direction, none if there is
    none.
    """
    chosen, rows = list(components), np.asarray(values, np.float64)
    rng = np.random.default_rng([seed, 0xC0, *chosen])
    center, (spread, axes) = rows.mean(0), spectrum(rows)
    # In the metric of the values, where all directions vary alike, orthogonal is uncorrelated.
    own = np.asarray(basis.filters, np.float64)[chosen]
    readers = spread[:, None] * (axes @ own.T)
    readers /= np.maximum(np.linalg.norm(readers, axis=0), 1e-300)
    left, sizes, _ = np.linalg.svd(readers, full_matrices=True)
    rest = left[:, int((sizes > 1e-9 * max(float(sizes.max(initial=0.0)), 1e-300)).sum()) :]
    if not rest.shape[1]:
        return []
    variances, turned = np.linalg.eigh(rest.T @ (spread[:, None] ** 2 * rest))
    wanted = removed_variance(basis, chosen, rows) * float((spread**2).sum())
    reached = np.flatnonzero(np.cumsum(variances[::-1]) >= wanted * AS_MUCH)
    width = int(reached[0]) + 1 if len(reached) else len(variances)
    length = float(np.linalg.norm(np.asarray(basis.patterns, np.float64)[chosen[0]]))
    controls = []
    for number in range(count if len(variances) > 1 else 1):
        wide = width if number == 0 or width < len(variances) else (width + 1) // 2
        ways = (rest @ turned @ tilted(variances, wide, wanted, rng)).T
        patterns, filters = (ways * spread) @ axes, (ways / spread) @ axes
        scale = length / np.maximum(np.linalg.norm(patterns, axis=1, keepdims=True), 1e-300)
        names, none = [f"random {number}"] * len(patterns), np.zeros((0, len(patterns)))
        one = Directions("random", names, center, patterns * scale, filters / scale, none, none.sum(0))
        controls.append(replace(one, midpoints=halfway(one.encode(rows))))
    return controls


def removed_variance(basis: Directions, components: Sequence[int], values: FloatArray) -> float:
    """Return the share of the variance of ``values`` ``[n, size]`` that goes when some components' scores are held constant."""
    rows, chosen = np.asarray(values, np.float64), list(components)
    scores = basis.encode(rows)[:, chosen]
    change = (scores - scores.mean(0)) @ np.asarray(basis.patterns, np.float64)[chosen]
    total = float(((rows - rows.mean(0)) ** 2).sum())
    return float((change**2).sum()) / total if total > 1e-300 else 0.0


def tilted(variances: FloatArray, width: int, wanted: float, rng: np.random.Generator) -> FloatArray:
    """Draw ``width`` orthonormal weights ``[k, width]`` of axes with ``variances`` ``[k]``, that carry ``wanted`` of them together.

    They are random, tilted towards axes of large or small variance until the sum fits, or is as near as possible.
    """
    relative = np.maximum(variances, 0.0) / max(float(variances.max()), 1e-300) + 1e-9
    drawn = rng.standard_normal((len(variances), width))
    low, high = -4.0, STEEPEST
    weights = drawn
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.linalg.qr(drawn * relative[:, None] ** middle).Q
        low, high = (middle, high) if (variances[:, None] * weights**2).sum() < wanted else (low, middle)
    return weights
