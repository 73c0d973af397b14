"""Pairs that people can answer: information, discounted by how often people err where returns are close."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.returns import spread_of
from rlhf_ray.queries.selection.candidates import Candidates
from rlhf_ray.teachers.human_like import ERROR, ERROR_SCALE


class Answerable:
    """Half of the pairs have the highest disagreement times (1 - 2 e(m))², the other half are random.

    ``m`` is the pair's predicted difference of returns over their spread (`rlhf_ray.data.returns.spread_of`), and
    ``e(m) = 0.5 exp(-m / 0.33)`` how often people err there (`rlhf_ray.teachers.human_like`). An answer that is wrong with
    probability e carries (1 - 2 e)² times the information of a certain one, for small differences of the log odds. Where the reward
    model is wrong about which pairs are far apart, the random half tells it.
    """

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        information = candidates.probabilities.var(axis=0)
        assert candidates.returns is not None
        spread = max(spread_of(candidates.returns.mean(axis=0)), 1e-9)
        errors = ERROR * np.exp(-np.abs(candidates.logits.mean(axis=0)) / spread / ERROR_SCALE)
        order = np.argsort(-information * (1.0 - 2.0 * errors) ** 2, kind="stable")
        informative = (candidates.count + int(rng.integers(2))) // 2  # of an odd count, half on average
        scores: FloatArray = rng.random(len(order))
        scores[order[:informative]] = 2.0 - np.arange(len(order[:informative])) / len(order)
        return scores
