"""Teachers: scripted annotators that see the true reward. Nothing else in training does."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.registry import Registry


class Teacher(Protocol):
    """Answers pairs. The constructor of a custom teacher may take ``settings``, the `PreferenceSettings`."""

    name: str
    """The annotator's name in the store."""

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """Answer each pair.

        Args:
            pairs: ``n`` pairs with true rewards.
            rng: source of randomness.

        Returns:
            ``[n]`` float32: the preference for the left fragment: 1 left, 0 right, 0.5 equally good.
        """
        ...


def _return_difference(pairs: Pairs) -> FloatArray:
    difference = pairs.left.returns() - pairs.right.returns()
    if np.isnan(difference).any():
        raise ValueError("A scripted teacher needs the true reward of every step; these fragments lack some.")
    return difference


class Oracle:
    """Prefers the fragment with the larger true return; exact ties are "equally good" (B-Pref's oracle, Lee et al. 2021)."""

    name = "oracle"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return ((np.sign(_return_difference(pairs)) + 1.0) / 2.0).astype(np.float32)


class Stochastic:
    """Prefers left with probability ``sigmoid(rationality * (return_left - return_right))`` (Bradley-Terry).

    Args:
        rationality: β, per unit of true reward: 0 answers at random, ∞ is the oracle. Choose it relative to the task's rewards.

    Raises:
        ValueError: ``rationality`` is negative.
    """

    name = "stochastic"

    def __init__(self, rationality: float):
        if rationality < 0:
            raise ValueError(f"preferences.rationality is {rationality}; it must be 0 (random answers) or more.")
        self.rationality = rationality

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        difference = _return_difference(pairs)
        # Handle ties separately: ∞ * 0 is NaN.
        logits = np.clip(self.rationality * np.where(difference == 0, 1.0, difference), -50.0, 50.0)
        logits[difference == 0] = 0.0
        return (rng.random(len(pairs)) < 1.0 / (1.0 + np.exp(-logits))).astype(np.float32)


TEACHERS: Registry[Teacher] = Registry(
    "preferences.teacher",
    Teacher,
    {"oracle": Oracle, "stochastic": lambda settings: Stochastic(settings.rationality)},
    others=("human",),
)
"""Built-in teachers by name."""
