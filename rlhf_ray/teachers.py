"""Teachers: who answers without a person. They see the true reward; nothing else in training does."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.registry import Registry


class Teacher(Protocol):
    """Answers questions about pairs. One of your own is made with ``settings``, the `PreferenceSettings`, where it takes them."""

    name: str
    """Who its answers are stored as those of."""

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """The preference for the left fragment of each pair, ``[n]`` float32: 1 left, 0 right, 0.5 equally good."""
        ...


def _return_difference(pairs: Pairs) -> FloatArray:
    difference = pairs.left.returns() - pairs.right.returns()
    if np.isnan(difference).any():
        raise ValueError("A scripted teacher needs the true reward of every step, and these fragments lack it.")
    return difference


class Oracle:
    """Always prefers the fragment of larger true return; exact ties are "equally good" (the oracle of B-Pref, 2021)."""

    name = "oracle"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return ((np.sign(_return_difference(pairs)) + 1.0) / 2.0).astype(np.float32)


class Stochastic:
    """Prefers left with probability ``sigmoid(rationality * (return_left - return_right))`` (Bradley-Terry).

    Args:
        rationality: β, per unit of true reward: 0 answers at random, ∞ is the oracle. Its scale is the task's.
    """

    name = "stochastic"

    def __init__(self, rationality: float):
        if rationality < 0:
            raise ValueError(f"preferences.rationality is {rationality}; it must be 0 (random answers) or more.")
        self.rationality = rationality

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        difference = _return_difference(pairs)
        # Ties apart: ∞ * 0 is no number.
        logits = np.clip(self.rationality * np.where(difference == 0, 1.0, difference), -50.0, 50.0)
        logits[difference == 0] = 0.0
        return (rng.random(len(pairs)) < 1.0 / (1.0 + np.exp(-logits))).astype(np.float32)


TEACHERS: Registry[Teacher] = Registry(
    "preferences.teacher",
    Teacher,
    {"oracle": Oracle, "stochastic": lambda settings: Stochastic(settings.rationality)},
    others=("human",),
)
"""By name."""
