"""A basis for tests: oblique components with given patterns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import FloatArray


@dataclass
class Oblique:
    """``patterns`` ``[k, size]`` around ``center``; filters are the rows of their pseudo-inverse."""

    patterns: FloatArray
    center: FloatArray
    kind: str = "ica"

    def __post_init__(self) -> None:
        self.names = [f"c{at}" for at in range(len(self.patterns))]
        self.filters: FloatArray = np.linalg.pinv(self.patterns).T

    def __len__(self) -> int:
        return len(self.patterns)

    def transform(self, values: FloatArray) -> FloatArray:
        scores: FloatArray = (values - self.center) @ self.filters.T
        return scores


def oblique(size: int = 16, count: int = 3, seed: int = 0) -> Oblique:
    """Draw components that are far from orthogonal."""
    rng = np.random.default_rng(seed)
    return Oblique(rng.standard_normal((count, size)) + 0.5, 0.1 * rng.standard_normal(size))
