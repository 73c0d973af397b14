"""A basis for tests: oblique components with given patterns."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.directions import Directions


def linear(patterns: FloatArray, center: FloatArray) -> Directions:
    """``patterns`` ``[k, size]`` around ``center``; filters are the rows of their pseudo-inverse."""
    count = len(patterns)
    names = [f"c{at}" for at in range(count)]
    return Directions("ica", names, center, patterns, np.linalg.pinv(patterns).T, np.zeros((0, count)), np.zeros(count))


def oblique(size: int = 16, count: int = 3, seed: int = 0) -> Directions:
    """Draw components that are far from orthogonal."""
    rng = np.random.default_rng(seed)
    return linear(rng.standard_normal((count, size)) + 0.5, 0.1 * rng.standard_normal(size))
