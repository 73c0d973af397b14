"""Directions: components of vectors of activations, each with the two vectors that belong to it, its pattern and its filter."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError

MOST = 20_000
"""Rows that factors are fitted to."""
NOT_LINEAR = ("nmf",)
"""Kinds whose scores are not those of their filters."""
ARRAYS = ("center", "patterns", "filters", "sources", "midpoints")


@dataclass(frozen=True)
class Directions:
    """``k`` components of vectors of length ``size``. All arrays are float64.

    A component has two vectors (Haufe et al. 2014), which differ unless components are orthogonal:

    * the *pattern* (column of the mixing matrix): how the vector changes when the score grows by 1. Interventions move the
      activations along it.
    * the *filter* (row of the unmixing matrix): how the score is read off the vector.

    For linear kinds ``encode(decode(scores)) == scores``, ``filters @ patterns.T`` is the identity, and score 0 is the mean of the
    values that they were fitted to. Scores of NMF are at least 0; its filters hold around `center`.
    """

    kind: str  # pca, ica, nmf, probe or random
    names: Sequence[str]  # of the components
    center: FloatArray  # ``[size]``: what has all scores 0: the values' mean; of NMF, the lowest value of each unit
    # patterns, filters: ``[k, size]``
    patterns: FloatArray
    filters: FloatArray
    sources: FloatArray  # ``[n, k]``: scores of the values that they were fitted to, as the fit itself computed them
    # ``[k]``: score halfway between the means of both classes; without labels, halfway between the 5 % and the 95 % quantile
    midpoints: FloatArray

    def __len__(self) -> int:
        return len(self.patterns)

    @property
    def means(self) -> FloatArray:
        """Mean scores ``[k]`` of the values that they were fitted to."""
        return np.asarray(self.sources.mean(0)) if self.kind in NOT_LINEAR else np.zeros(len(self))

    def part(self, components: Sequence[int]) -> Directions:
        """Return some components of a linear kind on their own."""
        chosen = list(components)
        names = [self.names[each] for each in chosen]
        arrays = self.patterns[chosen], self.filters[chosen], self.sources[:, chosen], self.midpoints[chosen]
        return Directions(self.kind, names, self.center, *arrays)

    def encode(self, values: Array) -> FloatArray:
        """Return the scores ``[n, k]`` of ``values`` ``[n, size]``."""
        centred = np.asarray(values, np.float64) - self.center
        if self.kind == "nmf":
            return nonnegative_weights(np.maximum(centred, 0.0), self.patterns)
        return np.asarray(centred @ self.filters.T)

    def decode(self, scores: Array) -> FloatArray:
        """Return the values ``[n, size]`` that scores ``[n, k]`` stand for."""
        return np.asarray(self.center + np.asarray(scores, np.float64) @ self.patterns)

    def gradient(self, gradients: Array) -> FloatArray:
        """Convert gradients ``[n, size]`` by the values to gradients ``[n, k]`` by the scores."""
        return np.asarray(np.asarray(gradients, np.float64) @ self.patterns.T)

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file, without pickle; the same directions give the same bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in ARRAYS}
        with path.open("wb") as file:
            np.savez(file, kind=np.array(self.kind), names=np.array(list(self.names), dtype=np.str_), **arrays)


def load(path: Path | str) -> Directions:
    """Read what `Directions.save` wrote.

    Raises:
        SettingError: there are no directions, or they are damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = [str(name) for name in stored["names"]]
            return Directions(str(stored["kind"]), names, *(stored[name] for name in ARRAYS))
    except FileNotFoundError:
        raise SettingError(
            f"There are no directions at {path}: fit some with rlhf_ray.interpret.directions.fit."
        ) from None
    except Exception as error:
        raise SettingError(f"The directions in {path} can't be read ({error}): fit them again.") from error


def halfway(scores: FloatArray) -> FloatArray:
    """Return the middle ``[k]`` between the 5 % and the 95 % quantile of scores ``[n, k]``."""
    if not scores.size:
        return np.zeros(scores.shape[1])
    return np.asarray(np.quantile(scores, [0.05, 0.95], axis=0).mean(0))


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
    return np.asarray(np.array([nnls(upper, target)[0] for target in targets.T]).reshape(len(rows), len(components)))
