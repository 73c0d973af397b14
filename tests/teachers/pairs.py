"""Made-up pairs with known true returns. Not a test itself."""

import dataclasses

import numpy as np

from rlhf_ray.data.comparisons import Pairs
from tests.made_up import some_fragments


def pairs_of(differences: list[float], spread: float | None = 1.0, seed: int = 0) -> Pairs:
    """Pairs whose true returns differ by ``differences``, left minus right; their observations are random."""
    n = len(differences)
    clips = some_fragments(2 * n, 2)
    rewards = np.zeros((2 * n, 2))
    rewards[:n, 1] = differences
    seen = np.random.default_rng(seed).normal(size=clips.observations.shape).astype(np.float32)
    clips = dataclasses.replace(clips, rewards=rewards, observations=seen)
    return Pairs(clips[:n], clips[n:], tuple(str(i) for i in range(n)), recent_spread=spread)


def near(share: float, chance: float, n: int) -> bool:
    """Whether a share of ``n`` draws is within four standard deviations of its chance."""
    return abs(share - chance) <= 4 * float(np.sqrt(chance * (1 - chance) / n)) + 1e-9
