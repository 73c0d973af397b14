"""The interface of a teacher: a scripted annotator that sees the true reward. Nothing else in training does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments

Feature = Callable[[Fragments], FloatArray]
"""What an annotator looks at: ``[n, k]`` floats of ``n`` fragments."""

NOBODY = ""
"""In place of an annotator's name, with NaN for the preference: nobody is there to answer the pair."""


@dataclass(frozen=True)
class Answers:
    """Answers of several annotators, one for each of ``n`` pairs.

    Attributes:
        preferences: ``[n]`` float32: as `Teacher.answer` returns them.
        annotators: ``n`` names: who answered or skipped each pair; `NOBODY` (the empty text), with NaN, for a pair that nobody was
            asked about: an annotator has left. In a `Population` another one gets the pair; else it has neither answer nor skip.
    """

    preferences: FloatArray
    annotators: tuple[str, ...]


class Teacher(Protocol):
    """Answers pairs. The constructor of a custom teacher may take ``settings``, the `PreferenceSettings`."""

    name: str
    """The annotator's name in the store."""

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray | Answers:
        """Answer each pair.

        Args:
            pairs: ``n`` pairs with true rewards.
            rng: source of randomness.

        Returns:
            ``[n]`` float32: the preference for the left fragment: 1 left, 0 right, 0.5 equally good, NaN to skip the pair ("can't
            tell"). Or `Answers`, for a teacher that speaks for several annotators.
        """
        ...


def plain(answers: FloatArray | Answers) -> FloatArray:
    """Return the preferences alone."""
    return answers.preferences if isinstance(answers, Answers) else answers


def absent(answers: FloatArray | Answers, count: int) -> BoolArray:
    """Return for which of ``count`` pairs nobody was there."""
    if not isinstance(answers, Answers):
        return np.zeros(count, dtype=bool)
    return np.array([name == NOBODY for name in answers.annotators]) & np.isnan(answers.preferences)


def true_returns(pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Return the true, undiscounted returns of left and right, ``[n]`` float64 each.

    Raises:
        ValueError: a step has no true reward.
    """
    left, right = pairs.left.returns(), pairs.right.returns()
    if np.isnan(left - right).any():
        raise ValueError("A scripted teacher needs the true reward of every step; these fragments lack some.")
    return left, right
