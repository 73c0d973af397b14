"""Uncertainty about the answer, and how much of it the answer would resolve."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.queries.selection.candidates import Candidates
from rlhf_ray.settings import RewardModelSettings


class Entropy:
    """Scores by the entropy of the answer under the ensemble's mean probability (B-Pref's entropy sampling). In nats."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        return entropy(candidates.probabilities.mean(axis=0))


class InformationGain:
    """Scores by the mutual information of the answer and the ensemble member, in nats: H(mean p) - mean H(p).

    The answer's own randomness does not count: pairs that every member finds even score 0. Bıyık et al. (2019, APReL) use the same
    score for samples from a posterior; here the members stand for the posterior. ``reward_model.label_noise`` adds the noise that
    the likelihood assumes; with None, what the newest fit found (`Candidates.label_noise`). Estimates for single annotators
    are not used: who will answer is not known yet.

    Args:
        reward_model: settings of the likelihood; none by default.
    """

    needs_reward = True

    def __init__(self, reward_model: RewardModelSettings | None = None):
        self.noise = None if reward_model is None else reward_model.label_noise

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        noise = candidates.label_noise if self.noise is None else self.noise
        probabilities = noise / 2 + (1 - noise) * candidates.probabilities.astype(np.float64)
        gain: FloatArray = entropy(probabilities.mean(axis=0)) - entropy(probabilities).mean(axis=0)
        return gain


def entropy(probabilities: FloatArray) -> FloatArray:
    """Compute the entropy in nats of answers that are left with these probabilities. Same shape, float64."""
    left = probabilities.astype(np.float64)
    right = 1.0 - left
    total = np.zeros_like(left)
    for p in (left, right):
        total -= p * np.log(np.where(p > 0, p, 1.0))
    return total
