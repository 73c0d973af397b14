"""Disagreement of the ensemble: pairs on which its members differ."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.queries.selection.candidates import Candidates


class Disagreement:
    """Scores by the variance over members of the probability that left is preferred (Christiano et al. 2017, section 2.2.4)."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        variance: FloatArray = candidates.probabilities.var(axis=0)
        return variance


class DisagreementOfLogits:
    """Scores by the variance over members of the log odds, as `imitation` does by default. Favours clear pairs more."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        variance: FloatArray = candidates.logits.astype(np.float64).var(axis=0)
        return variance


class DisagreementOfLabels:
    """Scores by the variance over members of the answer that each finds more likely: 1 left, 0 right, 0.5 if both are."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        variance: FloatArray = ((np.sign(candidates.logits) + 1.0) / 2.0).var(axis=0)
        return variance
