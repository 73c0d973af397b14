"""Uncertainty about the answer: how much the ensemble's members differ, and how much of it the answer would resolve."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import spread_of
from rlhf_ray.queries.selection.candidates import Candidates
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.teachers.human_like import ERROR, ERROR_SCALE


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


class Answerable:
    """Half of the pairs have the highest disagreement times (1 - 2 e(m))², the other half are random.

    ``m`` is the pair's predicted difference of returns over their spread (`rlhf_ray.data.comparisons.spread_of`), and
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
