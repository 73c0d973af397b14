"""Directions: components of vectors of activations, each with the two vectors that belong to it, its pattern and its filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.weights import nonnegative_weights

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

    Attributes:
        kind: pca, ica, nmf, probe or random.
        names: of the components.
        center: ``[size]``: what has all scores 0: the values' mean; of NMF, the lowest value of each unit.
        patterns, filters: ``[k, size]``.
        sources: ``[n, k]``: scores of the values that they were fitted to, as the fit itself computed them.
        midpoints: ``[k]``: score halfway between the means of both classes; without labels, halfway between the 5 % and the 95 %
            quantile.
    """

    kind: str
    names: Sequence[str]
    center: FloatArray
    patterns: FloatArray
    filters: FloatArray
    sources: FloatArray
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
        scores: FloatArray = centred @ self.filters.T
        return scores

    def decode(self, scores: Array) -> FloatArray:
        """Return the values ``[n, size]`` that scores ``[n, k]`` stand for."""
        values: FloatArray = self.center + np.asarray(scores, np.float64) @ self.patterns
        return values

    def remove(self, values: Array, components: Sequence[int]) -> FloatArray:
        """Return ``values`` ``[n, size]`` with the mean scores of some components; the other scores of linear kinds stay."""
        chosen = list(components)
        excess = self.encode(values)[:, chosen] - self.means[chosen]
        removed: FloatArray = np.asarray(values, np.float64) - excess @ self.patterns[chosen]
        return removed

    def gradient(self, gradients: Array) -> FloatArray:
        """Convert gradients ``[n, size]`` by the values to gradients ``[n, k]`` by the scores."""
        by_scores: FloatArray = np.asarray(gradients, np.float64) @ self.patterns.T
        return by_scores

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
            arrays = {name: stored[name] for name in stored.files}
        kind, names = str(arrays.pop("kind")), [str(name) for name in arrays.pop("names")]
        # Files of earlier versions lack what the other arrays tell.
        filters = arrays["filters"] if "filters" in arrays else np.linalg.pinv(arrays["patterns"]).T
        midpoints = arrays.get("midpoints", halfway(arrays["sources"]))
        four = (arrays["center"], arrays["patterns"], filters, arrays["sources"])
        return Directions(kind, names, *four, midpoints)
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
    middle: FloatArray = np.quantile(scores, [0.05, 0.95], axis=0).mean(0)
    return middle
