"""Factors: a few directions that explain a layer's activations or attributions, by NMF or PCA."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment, nnls
from sklearn.decomposition import NMF, PCA
from sklearn.exceptions import ConvergenceWarning

from rlhf_ray.data.arrays import Array, FloatArray

MOST = 20_000
"""Vectors that factors are fitted to: positions of images count one by one."""


@dataclass(frozen=True)
class Factors:
    """A few directions in the channels of a layer, for activations ``[n, channels, *positions]``.

    Channels are moved last before anything else, so that they never mix with positions.

    Attributes:
        kind: nmf or pca.
        components: ``[factors, channels]``; for signed NMF ``[factors, 2 * channels]``: positive parts, then negative parts.
        mean: ``[channels]``: what `transform` subtracts; zeros for NMF.
        signed: whether positive and negative parts are separate channels (NMF of attributions).
        explained: share of the sum of squares (PCA: of the variance) that the factors reproduce, of the data they were fitted to.
    """

    kind: Literal["nmf", "pca"]
    components: FloatArray
    mean: FloatArray
    signed: bool
    explained: float

    def __len__(self) -> int:
        return len(self.components)

    @property
    def directions(self) -> FloatArray:
        """Directions ``[factors, channels]`` of unit length; of signed NMF, positive minus negative part."""
        found = self.components
        if self.signed:
            positive, negative = np.split(found, 2, axis=1)
            found = positive - negative
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.where(lengths > 0, lengths, 1.0))

    def transform(self, values: Array) -> FloatArray:
        """Return how much of each factor is in ``values`` ``[n, channels, *positions]``: ``[n, factors, *positions]``.

        Raises:
            ValueError: NMF, not signed, of negative values.
        """
        rows = self._rows(values)
        weights: FloatArray
        if self.kind == "pca":
            weights = rows @ self.components.T
        else:
            if rows.min(initial=0.0) < 0.0:
                raise ValueError("NMF needs values of 0 or more: fit with signed=True.")
            weights = nonnegative_weights(rows, self.components)
        return _channels_second(weights, values)

    def inverse(self, weights: Array) -> FloatArray:
        """Return the values ``[n, channels, *positions]`` with ``weights`` ``[n, factors, *positions]`` of the factors."""
        rows = _channels_last(weights) @ self.components
        if self.signed:
            positive, negative = np.split(rows, 2, axis=1)
            rows = positive - negative
        return _channels_second(rows + self.mean, weights)

    def _rows(self, values: Array) -> FloatArray:
        rows = _channels_last(values) - self.mean
        return _parts(rows) if self.signed else rows


def fit(values: Array, count: int, kind: Literal["nmf", "pca"] = "nmf", seed: int = 0, signed: bool = False) -> Factors:
    """Fit factors.

    Args:
        values: activations or attributions ``[n, channels, *positions]``.
        count: number of factors; fewer if there are fewer channels or rows.
        kind: nmf: non-negative, additive parts; pca: orthogonal directions of the largest variance.
        seed: draws rows, and NMF's start.
        signed: for NMF of attributions: separate positive and negative parts, each a channel of its own.

    Raises:
        ValueError: NMF, not signed, of negative values.
    """
    signed = signed and kind == "nmf"
    rows = _channels_last(values)
    if len(rows) > MOST:
        rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), MOST, replace=False))]
    mean = rows.mean(0) if kind == "pca" else np.zeros(rows.shape[1])
    rows = _parts(rows) if signed else rows - mean
    count = min(count, *rows.shape)
    if kind == "pca":
        components = PCA(count, random_state=seed).fit(rows).components_
        fitted = rows @ components.T @ components
    else:
        if rows.min(initial=0.0) < 0.0:
            raise ValueError("NMF needs values of 0 or more: pass signed=True, or use PCA.")
        model = NMF(count, init="nndsvda", random_state=seed, max_iter=400, tol=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = model.fit_transform(rows) @ model.components_
        components = model.components_
    total = float((rows**2).sum())
    explained = 1.0 - float(((rows - fitted) ** 2).sum()) / total if total > 1e-12 else 1.0
    return Factors(kind, np.asarray(components), mean, signed, explained)


def match(first: FloatArray, second: FloatArray) -> FloatArray:
    """Pair directions of two sets so that they agree best, and return the absolute cosine of each pair.

    Args:
        first: ``[k, channels]``.
        second: ``[m, channels]``, m at least k.

    Returns:
        ``[k]``, in the order of ``first``.
    """
    lengths = [np.maximum(np.linalg.norm(of, axis=1, keepdims=True), 1e-12) for of in (first, second)]
    cosines = np.abs((first / lengths[0]) @ (second / lengths[1]).T)
    rows, columns = linear_sum_assignment(-cosines)
    agreement: FloatArray = cosines[rows, columns]
    return agreement


def stability(values: Array, factors: Factors, seeds: Sequence[int], share: float = 0.5) -> FloatArray:
    """Fit the factors again to random halves of the data, and return how well each is found again.

    Args:
        values: what ``factors`` were fitted to.
        factors: the factors.
        seeds: one for each further fit.
        share: share of the data in each.

    Returns:
        ``[factors]``: mean absolute cosine to the best partner, in [0, 1].
    """
    found = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 0xFAC])
        some = rng.choice(len(values), max(2, round(share * len(values))), replace=False)
        again = fit(values[np.sort(some)], len(factors), factors.kind, seed, factors.signed)
        found.append(
            match(factors.components, again.components) if len(again) >= len(factors) else np.zeros(len(factors))
        )
    return np.asarray(np.mean(found, 0))


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


def _channels_last(values: Array) -> FloatArray:
    """Return one row per step and position: ``[n * positions, channels]`` float64."""
    return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]).astype(np.float64)


def _channels_second(rows: FloatArray, like: Array) -> FloatArray:
    """Undo `_channels_last`."""
    return np.moveaxis(rows.reshape(len(like), *like.shape[2:], -1), -1, 1)


def _parts(rows: FloatArray) -> FloatArray:
    return np.concatenate([np.maximum(rows, 0.0), np.maximum(-rows, 0.0)], 1)
