"""Linear bases: scores are linear in the values, and each component has its pattern and its filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.bases import stored

FIELDS = ("center", "patterns", "filters", "sources", "midpoints")


@dataclass(frozen=True)
class Linear:
    """A linear `Basis`: PCA, ICA, probes and mean differences. Score 0 is the mean of the values that it was fitted to.

    Attributes:
        kind: pca, ica, probe or mean_difference.
        names: of the components.
        center: ``[size]``: the values' mean.
        patterns, filters: ``[k, size]``; ``filters @ patterns.T`` is the identity.
        sources: ``[n, k]``: scores of the values that it was fitted to, as the fit itself computed them.
        midpoints: ``[k]``: score halfway between the means of both classes (numbers: above and below the median); without labels
            halfway between the 5 % and the 95 % quantile.
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
        """Mean scores ``[k]`` of the values that it was fitted to."""
        return np.zeros(len(self))

    def transform(self, values: FloatArray) -> FloatArray:
        """See `Basis.transform`."""
        scores: FloatArray = (np.asarray(values, np.float64) - self.center) @ self.filters.T
        return scores

    def inverse(self, scores: FloatArray) -> FloatArray:
        """See `Basis.inverse`."""
        values: FloatArray = self.center + np.asarray(scores, np.float64) @ self.patterns
        return values

    def gradient(self, gradients: FloatArray) -> FloatArray:
        """See `Basis.gradient`."""
        by_scores: FloatArray = np.asarray(gradients, np.float64) @ self.patterns.T
        return by_scores

    def save(self, path: Path) -> None:
        """See `Basis.save`."""
        stored.write(path, self.kind, self.names, {name: getattr(self, name) for name in FIELDS})

    @classmethod
    def load(cls, path: Path) -> Self:
        """See `Basis.load`."""
        kind, names, arrays = stored.read(path)
        if missing := set(FIELDS) - set(arrays):
            raise SettingError(f"The basis in {path} lacks {', '.join(sorted(missing))}: fit it again.")
        return cls(kind, names, **{name: arrays[name] for name in FIELDS})


def halfway(scores: FloatArray) -> FloatArray:
    """Return the middle ``[k]`` between the 5 % and the 95 % quantile of scores ``[n, k]``."""
    if not scores.size:
        return np.zeros(scores.shape[1])
    middle: FloatArray = np.quantile(scores, [0.05, 0.95], axis=0).mean(0)
    return middle


def spectrum(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return standard deviations ``[r]`` and unit directions ``[r, size]`` of the principal axes that vary, the largest first."""
    centred = np.asarray(values, np.float64) - np.mean(values, 0)
    few = len(centred) < centred.shape[1]  # then the smaller matrix, of rows, has the same spectrum
    lengths, axes = np.linalg.eigh((centred @ centred.T if few else centred.T @ centred) / max(len(centred), 1))
    spread, axes = np.sqrt(np.maximum(lengths[::-1], 0.0)), axes.T[::-1]
    kept = spread > 1e-6 * max(float(spread.max(initial=0.0)), 1e-6)
    spread, axes = spread[kept], axes[kept]
    if few:
        axes = axes @ centred
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    return spread, axes


def enough(values: FloatArray, share: float = 0.95) -> int:
    """Return the smallest number of principal components that explain at least ``share`` of the variance; at least 1."""
    return enough_of(spectrum(values)[0], share)


def enough_of(spread: FloatArray, share: float = 0.95) -> int:
    """Return the same, of the standard deviations of the components."""
    if not len(spread):
        return 1
    explained = np.cumsum(spread**2) / np.sum(spread**2)
    return min(int(np.searchsorted(explained, share - 1e-12)) + 1, len(spread))
