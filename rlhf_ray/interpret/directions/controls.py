"""Controls: random directions whose removal takes as much variance as that of components, or that values are moved along as far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.directions.components import spectrum
from rlhf_ray.interpret.directions.directions import Directions
from rlhf_ray.interpret.directions.interventions import midpoints

COUNT = 10
"""Random directions."""
AS_MUCH = 0.9
"""Share of the wanted variance from which on directions carry as much: variances of a few hundred steps err by as much."""
STEEPEST = 12.0
"""Bound of the tilt towards directions of large or small variance: at this one, all are nearly the first axis."""


def random_bases(
    basis: Directions,
    components: Sequence[int],
    values: FloatArray,
    labels: Array | None = None,
    count: int = COUNT,
    seed: int = 0,
    hold: FloatArray | None = None,
) -> list[Directions]:
    """Return bases of random directions that stand in for some components: removed, they take as much variance from the values.

    They lie in the space that the values vary in, and their scores are uncorrelated with the components': removing them leaves what
    the components say as it is. Their patterns have the length of the first component's, so that a step of a score moves the
    values as far. Where no single direction carries as much variance as the components, a basis has as few directions as do
    together; where all others together carry less, the first basis has all of them, and the others random halves
    (`removed_variance` tells how much each takes). Midpoints are found in the same way as the components'.

    Args:
        basis: the directions.
        components: the components to stand in for.
        values: ``[n, size]`` that have the variance.
        labels: two classes ``[n]`` for the midpoints; see `midpoints`.
        count: number of bases. There is one if there is one other direction, and none if there is none.
        seed: seeds the directions.
        hold: filters ``[k, size]`` of what else stays as it is: other concepts, whose removal may well have an effect of its own.
    """
    chosen, rows = list(components), np.asarray(values, np.float64)
    rng = np.random.default_rng([seed, 0xC0, *chosen])
    center, (spread, axes) = rows.mean(0), spectrum(rows)
    # In the metric of the values, where all directions vary alike, orthogonal is uncorrelated.
    own = np.asarray(basis.filters, np.float64)[chosen]
    readers = spread[:, None] * (axes @ (own if hold is None else np.concatenate([own, hold])).T)
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
        controls.append(_named(number, center, patterns * scale, filters / scale, rows, labels))
    return controls


def orthogonal_bases(
    basis: Directions,
    components: Sequence[int],
    values: FloatArray,
    labels: Array | None = None,
    count: int = COUNT,
    seed: int = 0,
) -> list[Directions]:
    """Return bases of random directions to move values along as far as along some components: the control for such a move.

    They are orthogonal to the components' patterns, and as long. Values vary along each as much as along the pattern, where they do
    along any other direction; else the directions are uniform: values that are moved from one class to another are moved farther
    than they vary in most directions, and the few in which they vary as much drive behaviour, too. See `random_bases` for the rest.
    """
    rng = np.random.default_rng([seed, 0xC1, *components])
    rows = np.asarray(values, np.float64)
    center, replaced = rows.mean(0), np.asarray(basis.patterns, np.float64)[list(components)]
    rest = np.linalg.qr(replaced.T, mode="complete").Q[:, len(replaced) :]
    count = min(count, rest.shape[1]) if rest.shape[1] < 2 else count
    if not count:
        return []
    left, drawn = rows @ rest, []
    largest = float(np.linalg.eigvalsh(np.cov(left.T, bias=True).reshape(rest.shape[1], -1))[-1])
    for pattern in replaced:
        length = float(np.linalg.norm(pattern))
        wanted = float(((rows - center) @ pattern / max(length, 1e-300)).var())
        uniform = rng.standard_normal((count, rest.shape[1]))
        ways = random_directions(left, wanted, rng, count) if wanted <= largest else list(uniform)
        drawn.append([rest @ way / max(float(np.linalg.norm(way)), 1e-300) * length for way in ways])
    controls = []
    for number, patterns in enumerate(np.stack(each) for each in zip(*drawn, strict=True)):
        controls.append(_named(number, center, patterns, np.linalg.pinv(patterns).T, rows, labels))
    return controls


def _named(
    number: int, center: FloatArray, patterns: FloatArray, filters: FloatArray, rows: FloatArray, labels: Array | None
) -> Directions:
    """Return a basis of random directions with its midpoints."""
    names, none = [f"random {number}"] * len(patterns), np.zeros((0, len(patterns)))
    random = Directions("random", names, center, patterns, filters, none, none.sum(0))
    return replace(random, midpoints=midpoints(random, rows, labels))


def removed_variance(basis: Directions, components: Sequence[int], values: FloatArray) -> float:
    """Return the share of the variance of ``values`` ``[n, size]`` that goes when some components' scores are held constant."""
    rows, chosen = np.asarray(values, np.float64), list(components)
    scores = basis.encode(rows)[:, chosen]
    change = (scores - scores.mean(0)) @ np.asarray(basis.patterns, np.float64)[chosen]
    total = float(((rows - rows.mean(0)) ** 2).sum())
    return float((change**2).sum()) / total if total > 1e-300 else 0.0


def random_directions(rows: FloatArray, wanted: float, rng: np.random.Generator, count: int) -> list[FloatArray]:
    """Draw unit vectors ``[size]`` along which ``rows`` ``[n, size]`` have the variance ``wanted``, or as near as possible."""
    centred = (rows - rows.mean(0)).astype(np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    return [axes @ tilted(variances, 1, wanted, rng)[:, 0] for _ in range(count)]


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
