"""Teachers: scripted annotators that see the true reward. Nothing else in training does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.comparisons import Pairs, differences, rounding, spread_of
from rlhf_ray.data.errors import SettingError
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


def signed_margins(pairs: Pairs) -> FloatArray:
    """Return each pair's difference of true returns, left minus right, over their spread.

    The spread is that of the fragments that the pairs were drawn from (`Pairs.recent_spread`; else of the pairs' own fragments). So
    a margin has no unit, and 1 in size for a pair that 95 of 100 random pairs are closer than.

    Returns:
        ``[n]`` float64: exactly 0 where the returns differ by rounding only; infinite where they differ and the spread is 0.

    Raises:
        ValueError: a step has no true reward.
    """
    left, right = true_returns(pairs)
    margins = differences(pairs.left.rewards, pairs.right.rewards)
    spread = pairs.recent_spread
    if spread is None or not math.isfinite(spread):
        spread = spread_of(np.concatenate([left, right]))
    with np.errstate(divide="ignore", over="ignore"):
        return np.divide(margins, spread, out=np.zeros(len(margins)), where=margins != 0)


@dataclass(eq=False)
class SimulatedTeacher:
    """A teacher that knows the true returns, and errs in the five ways of B-Pref.

    In B-Pref's order: it *skips* a pair in which neither fragment is good enough; it compares *myopically* weighted returns,
    ``Σ γ^(H-1-t) r_t``; it prefers left with probability ``sigmoid(β * difference)``; it makes a *mistake* (answers the opposite)
    with probability ε; and it calls a pair *equal* if the unweighted returns are close, whatever it said before.

    The thresholds of skip and equal adapt to the agent: they are shares of ``m``, the mean true return of the fragments that the
    pairs were drawn from (`Pairs.recent_return`; else of the pairs' own). A pair is equal if its returns differ by less than
    ``equal * |m|``. It is skipped if the better return is at most ``m - (1 - skip) * |m|``, which is B-Pref's ``skip * m`` for
    ``m > 0`` and lies as far below the mean for ``m < 0``. With ``m = 0`` nothing is skipped. (B-Pref's PEBBLE multiplies both
    shares in twice.) Returns are equal if they differ by rounding only (`rlhf_ray.data.comparisons`). The teacher has no state: the
    same pairs and generator give the same answers.

    Args:
        rationality: β, per unit of true return: 0 answers at random. None: always the larger return. Equal returns are ties.
        myopia: γ, in (0, 1]: weight of a step relative to the one after it.
        mistake: probability of the opposite answer, in [0, 1].
        skip: share of the mean return that a fragment must reach, in [0, 1]. 0: skips nothing.
        equal: share of the mean return by which the returns must differ, 0 or more.
        soft: answers the probability that it would prefer left, instead of drawing the answer.
        discount: in (0, 1]: weight of a step relative to the one before it, in the returns that it compares (`imitation`).

    Raises:
        SettingError: a parameter is out of range.
    """

    name: str = "simulated"
    _: KW_ONLY
    rationality: float | None = None
    myopia: float = 1.0
    mistake: float = 0.0
    skip: float = 0.0
    equal: float = 0.0
    soft: bool = False
    discount: float = 1.0

    def __post_init__(self) -> None:
        for parameter, value, valid, rule in (
            ("rationality", self.rationality, (self.rationality or 0) >= 0, "0 (random answers) or more"),
            ("myopia", self.myopia, 0 < self.myopia <= 1, "above 0 and at most 1"),
            ("mistake", self.mistake, 0 <= self.mistake <= 1, "between 0 and 1"),
            ("skip", self.skip, 0 <= self.skip <= 1, "between 0 and 1"),
            ("equal", self.equal, self.equal >= 0, "0 or more"),
            ("teacher_discount", self.discount, 0 < self.discount <= 1, "above 0 and at most 1"),
        ):
            if not valid:
                raise SettingError(f"preferences.{parameter} is {value}; it must be {rule}.")

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        left, right = true_returns(pairs)
        steps = np.arange(pairs.left.length)
        weights = self.myopia ** steps[::-1] * self.discount**steps
        answers = self._preferred(differences(pairs.left.rewards, pairs.right.rewards, weights), rng)
        if self.mistake:
            answers = self._mistaken(answers, rng)
        error = max(float(rounding(side.rewards).max(initial=0.0)) for side in (pairs.left, pairs.right))
        mean = _recent(pairs)
        mean = 0.0 if abs(mean) <= error else mean
        if self.equal:
            answers[np.abs(left - right) < self.equal * abs(mean) - error] = 0.5
        if self.skip and mean:
            answers[np.maximum(left, right) <= mean - (1 - self.skip) * abs(mean) + error] = np.nan
        return answers.astype(np.float32)

    def _preferred(self, difference: FloatArray, rng: np.random.Generator) -> FloatArray:
        if self.rationality is None:
            return (np.sign(difference) + 1.0) / 2.0
        # Handle ties separately: ∞ * 0 is NaN.
        logits = np.clip(self.rationality * np.where(difference == 0, 1.0, difference), -50.0, 50.0)
        logits[difference == 0] = 0.0
        chances: FloatArray = 1.0 / (1.0 + np.exp(-logits))
        return chances if self.soft else (rng.random(len(difference)) < chances).astype(np.float64)

    def _mistaken(self, answers: FloatArray, rng: np.random.Generator) -> FloatArray:
        if self.soft:
            return (1 - self.mistake) * answers + self.mistake * (1 - answers)
        return np.where(rng.random(len(answers)) < self.mistake, 1 - answers, answers)


def _recent(pairs: Pairs) -> float:
    """The mean true return of the fragments that the pairs were drawn from; of the pairs' own if that is unknown."""
    if pairs.recent_return is not None and math.isfinite(pairs.recent_return):
        return pairs.recent_return
    return float(np.mean(np.concatenate(true_returns(pairs)))) if len(pairs) else 0.0


class Oracle(SimulatedTeacher):
    """Prefers the fragment with the larger true return; equal ones are "equally good"."""

    def __init__(self) -> None:
        super().__init__("oracle")


class Stochastic(SimulatedTeacher):
    """Prefers left with probability ``sigmoid(rationality * (return_left - return_right))`` (Bradley-Terry).

    Args:
        rationality: β, per unit of true return: 0 answers at random. Choose it relative to the task's rewards.
    """

    def __init__(self, rationality: float):
        super().__init__("stochastic", rationality=rationality)
