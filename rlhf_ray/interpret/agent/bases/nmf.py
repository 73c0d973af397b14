"""NMF: additive parts. Values are counted from the lowest that each unit had, because memory is negative too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret import factors
from rlhf_ray.interpret.agent.bases import stored
from rlhf_ray.interpret.agent.bases.labels import Labels
from rlhf_ray.interpret.agent.bases.linear import halfway


@dataclass(frozen=True)
class Parts:
    """A `Basis` of non-negative parts. Scores are at least 0, with a mean square of 1; values below the lowest count as the lowest.

    Attributes:
        names: of the components.
        center: ``[size]``: the lowest value of each unit.
        patterns: ``[k, size]``, at least 0.
        sources: ``[n, k]``: scores of the values that it was fitted to.
    """

    names: Sequence[str]
    center: FloatArray
    patterns: FloatArray
    sources: FloatArray
    kind: str = "nmf"

    def __len__(self) -> int:
        return len(self.patterns)

    @property
    def filters(self) -> FloatArray:
        """``[k, size]``: the pseudo-inverse of the patterns, which is exact where all scores are above 0."""
        found: FloatArray = np.linalg.pinv(self.patterns).T
        return found

    @property
    def means(self) -> FloatArray:
        """Mean scores ``[k]`` of the values that it was fitted to."""
        return np.asarray(self.sources.mean(0))

    @property
    def midpoints(self) -> FloatArray:
        """Scores ``[k]`` halfway between the 5 % and the 95 % quantile."""
        return halfway(self.sources)

    def transform(self, values: FloatArray) -> FloatArray:
        """See `Basis.transform`."""
        return factors.nonnegative_weights(np.maximum(np.asarray(values, np.float64) - self.center, 0.0), self.patterns)

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
        arrays = {"center": self.center, "patterns": self.patterns, "sources": self.sources}
        stored.write(path, self.kind, self.names, arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """See `Basis.load`."""
        _, names, arrays = stored.read(path)
        return cls(names, arrays["center"], arrays["patterns"], arrays["sources"])


def fit(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Parts:
    """Fit at most ``count`` parts to ``values`` ``[n, size]``."""
    lowest = values.min(0)
    found = factors.fit(values - lowest, count, "nmf", seed)
    patterns = found.components[np.linalg.norm(found.components, axis=1) > 1e-9]
    sources = factors.nonnegative_weights(values - lowest, patterns)
    spread = np.sqrt((sources**2).mean(0))
    order = np.argsort(-spread * np.linalg.norm(patterns, axis=1), kind="stable")
    order = order[spread[order] > 1e-9]
    names = [f"additive component {at}" for at in range(len(order))]
    return Parts(names, lowest, patterns[order] * spread[order, None], sources[:, order] / spread[order])
