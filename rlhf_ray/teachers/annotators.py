"""Annotators who err in ways of their own, as people do, wrongly, or until they leave; and populations of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.comparisons import Pairs, differences
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.teachers.teacher import NOBODY, Answers, Feature, SimulatedTeacher, Teacher, absent, plain, signed_margins

SKIP, SKIP_SCALE, ERROR, ERROR_SCALE = 0.45, 0.15, 0.5, 0.33
"""Fitted to the published answers of CLARIFY's people and Uni-RLHF's crowd (arXiv 2506.00388; arXiv 2402.02423)."""


@dataclass(eq=False)
class HumanLike:
    """A teacher that skips and errs as people do: often where the true returns are close, hardly ever where they are far apart.

    With the margin ``m = |R_left - R_right| / spread`` (`rlhf_ray.teachers.teacher`), it skips a pair with probability
    ``skip * exp(-m / skip_scale)``, and an answer is wrong with probability ``error * exp(-m / error_scale)``. So it answers equal
    returns by the toss of a coin, with ``error`` at one half, and never calls a pair equal. The curves are fitted to the published
    answers of CLARIFY's people and Uni-RLHF's crowd (arXiv 2506.00388; arXiv 2402.02423). The teacher has no state: the same pairs
    and generator give the same answers.

    Args:
        skip: probability of a skip at margin 0, in [0, 1].
        skip_scale: margin at which the probability of a skip has fallen to 1/e, above 0.
        error: probability that an answer is wrong at margin 0, in [0, 1].
        error_scale: margin at which the probability of a wrong answer has fallen to 1/e, above 0.

    Raises:
        SettingError: a parameter is out of range.
    """

    name: str = "human_like"
    _: KW_ONLY
    skip: float = SKIP
    skip_scale: float = SKIP_SCALE
    error: float = ERROR
    error_scale: float = ERROR_SCALE

    def __post_init__(self) -> None:
        for parameter, value, valid, rule in (
            ("skip", self.skip, 0 <= self.skip <= 1, "between 0 and 1"),
            ("skip_scale", self.skip_scale, self.skip_scale > 0, "above 0"),
            ("error", self.error, 0 <= self.error <= 1, "between 0 and 1"),
            ("error_scale", self.error_scale, self.error_scale > 0, "above 0"),
        ):
            if not valid:
                raise SettingError(f"{parameter} of the annotator {self.name} is {value}; it must be {rule}.")

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        margins = signed_margins(pairs)
        skips, errors = self.rates(np.abs(margins))
        skipped = rng.random(len(pairs)) < skips
        wrong = rng.random(len(pairs)) < errors
        answers = np.where((margins > 0) != wrong, 1.0, 0.0)
        answers[skipped] = np.nan
        return answers.astype(np.float32)

    def rates(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the probability of a skip, and of a wrong answer where there is one, for margins of 0 or more."""
        return self.skip * np.exp(-margins / self.skip_scale), self.error * np.exp(-margins / self.error_scale)


MARGIN = 0.1
"""Pairs closer than this are hard: people err in more than a third of them (`rlhf_ray.teachers.HumanLike`)."""


class Systematic:
    """An oracle that judges close pairs by one wrong feature, the same every time: nothing is left to chance.

    Pairs whose returns are at least ``margin`` apart (`rlhf_ray.teachers.teacher`) are answered by the true return, closer ones by
    the feature: the fragment with more of it is preferred, whatever the returns. Equal features are "equally good". More answers do
    not average such errors out.

    Args:
        margin: below it the feature decides, 0 or more; without unit, as a share of the spread of returns.
        feature: what decides close pairs, ``[n, k]`` floats of ``n`` fragments, of which the sums are compared. By default the mean
            of the observations' first number; of images, the mean brightness.

    Raises:
        SettingError: ``margin`` is out of range.
    """

    def __init__(self, name: str = "systematic", *, margin: float = MARGIN, feature: Feature | None = None):
        if not margin >= 0:
            raise SettingError(f"margin of the annotator {name} is {margin}; it must be 0 or more.")
        self.name, self.margin, self.feature = name, margin, feature or first_number

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`. Draws nothing."""
        margins = signed_margins(pairs)
        misled = differences(*(np.asarray(self.feature(copy.deepcopy(side))) for side in (pairs.left, pairs.right)))
        decides = np.where(np.abs(margins) < self.margin, misled, margins)
        return ((np.sign(decides) + 1.0) / 2.0).astype(np.float32)


class Inverted:
    """Answers the opposite of another teacher, as someone does who mixed up the keys. Skips and ties stay as they are.

    Args:
        teacher: what the annotator means to answer. By default the oracle.
    """

    def __init__(self, teacher: Teacher | None = None, name: str = "inverted"):
        self.name, self.teacher = name, teacher or SimulatedTeacher(name)

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return (1.0 - plain(self.teacher.answer(pairs, rng))).astype(np.float32)


class Guessing:
    """Answers left or right at random, each half of the time, without looking. Needs no true rewards."""

    def __init__(self, name: str = "guessing"):
        self.name = name

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return rng.integers(0, 2, len(pairs)).astype(np.float32)


def first_number(fragments: Fragments) -> FloatArray:
    """The mean over a fragment of the first number of its observations; of images, of all: ``[n, 1]`` float64."""
    seen = fragments.observations
    per_step = seen.reshape(*seen.shape[:2], -1)
    numbers = per_step if seen.ndim > 3 else per_step[:, :, :1]
    means: FloatArray = numbers.astype(np.float64).reshape(len(seen), -1).mean(1, keepdims=True)
    return means


class Leaving:
    """An annotator who leaves after a number of answers, and is asked nothing from then on.

    Answers count, ties too, under this annotator's name; skips do not. `Pairs.answered` says how many there were before, so a
    resumed run goes on counting where it was; labels that a run starts from count too. In a `Population` the others get the pairs.
    Put it around any other wrapper, such as `Annotator`.

    Args:
        after: number of answers, 1 or more.

    Raises:
        SettingError: ``after`` is out of range.
    """

    def __init__(self, teacher: Teacher, after: int = 30):
        if after < 1:
            raise SettingError(f"after of the annotator {teacher.name} is {after}; it must be 1 or more.")
        self.name, self.teacher, self.after = teacher.name, teacher, after

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Answers:
        """See `Teacher.answer`. Nobody answers the pairs after the last answer."""
        answered = (pairs.answered or {}).get(self.name, 0)
        preferences, asked = np.full(len(pairs), np.nan, dtype=np.float32), 0
        while asked < len(pairs) and answered < self.after:
            some = slice(asked, asked + self.after - answered)
            preferences_said = plain(self.teacher.answer(pairs[some], rng))
            preferences[some] = preferences_said
            answered, asked = answered + int((~np.isnan(preferences[some])).sum()), asked + len(preferences_said)
        names = (self.name,) * asked + (NOBODY,) * (len(pairs) - asked)
        return Answers(preferences, names)


class Renamed:
    """A teacher under another name in the store."""

    def __init__(self, teacher: Teacher, name: str):
        self.name, self.teacher = name, teacher

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray | Answers:
        """See `Teacher.answer`."""
        counts = dict(pairs.answered or {})
        known = replace(pairs, answered=counts | {self.teacher.name: counts.get(self.name, 0)})
        answers = self.teacher.answer(known, rng)
        if not isinstance(answers, Answers):
            return answers
        return Answers(answers.preferences, tuple(self.name if name else NOBODY for name in answers.annotators))


GUESSING = 0.5
"""Share of reversed answers of an annotator who guesses: answers reversed more often would tell the right one again."""


@dataclass(eq=False)
class Annotator:
    """A teacher whose answers pass through an annotator's own errors. Skips and ties stay as they are.

    The answer of ``teacher`` is reversed with probability ``alike * exp(-distance / scale) + drift * version``, where ``version``
    is the newer policy version of the pair (0 for random actions) and ``distance`` the root mean square difference of what the
    annotator looks at. The drift ends where the sum is one half: a tired annotator guesses. Then, with probability
    ``abs(side)``, the annotator answers the preferred side without looking, where ``side`` is ``side_bias + side_drift * version``
    within [-1, 1]. Errors depend on the pair alone, so a resumed run repeats them.

    Args:
        teacher: what the annotator means to answer, under this teacher's name. Its own ``mistake`` is a constant error rate.
        side_bias: from -1 (always right) over 0 (none) to 1 (always left).
        drift: error rate added per policy version, up to a rate of `GUESSING`: the annotator tires. 0 or more.
        side_drift: side bias added per policy version: above 0 for a tired annotator who answers left, below 0 for right.
        alike: error rate added for fragments that look the same, in [0, 1].
        scale: distance at which ``alike`` has fallen to 1/e, above 0; in the units of the feature.
        feature: what the annotator looks at, in place of the observations (images in [0, 1]).

    Raises:
        SettingError: a parameter is out of range.
    """

    teacher: Teacher
    _: KW_ONLY
    side_bias: float = 0.0
    drift: float = 0.0
    side_drift: float = 0.0
    alike: float = 0.0
    scale: float = 1.0
    feature: Feature | None = None

    def __post_init__(self) -> None:
        self.name = self.teacher.name
        for parameter, valid, rule in (
            ("side_bias", -1 <= self.side_bias <= 1, "between -1 (right) and 1 (left)"),
            ("drift", self.drift >= 0, "0 or more"),
            ("side_drift", np.isfinite(self.side_drift), "a finite number"),
            ("alike", 0 <= self.alike <= 1, "between 0 and 1"),
            ("scale", self.scale > 0, "above 0"),
        ):
            if not valid:
                value = getattr(self, parameter)
                raise SettingError(f"{parameter} of the annotator {self.name} is {value}; it must be {rule}.")

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        answers = plain(self.teacher.answer(copy.deepcopy(pairs), rng))  # it may change its inputs in place
        if self.drift or self.alike:
            answers = np.where(rng.random(len(pairs)) < self.error_rates(pairs), 1 - answers, answers)
        if self.side_bias or self.side_drift:
            side = np.clip(self.side_bias + self.side_drift * _version(pairs), -1.0, 1.0)
            blind = (rng.random(len(pairs)) < np.abs(side)) & (answers != 0.5) & ~np.isnan(answers)
            answers = np.where(blind, side > 0, answers)
        return answers.astype(np.float32)

    def error_rates(self, pairs: Pairs) -> FloatArray:
        """Compute the probability that each answer is reversed, ``[n]`` float64, beyond the mistakes of `teacher`."""
        rates: FloatArray = np.zeros(len(pairs))
        if self.alike:
            looks_at = self.feature or _seen
            apart = np.sqrt(np.mean((looks_at(pairs.left) - looks_at(pairs.right)) ** 2, axis=1))
            rates = self.alike * np.exp(-apart / self.scale)
        tired: FloatArray = np.minimum(self.drift * _version(pairs), np.maximum(GUESSING - rates, 0.0))
        return rates + tired


class Population:
    """Annotators who share the pairs: each pair goes to one of them, drawn at random among those who have not left (`Leaving`).

    Answers are stored under each annotator's name, so that error rates can be estimated. For a population of your own, name its
    annotators in `PreferenceSettings.annotators`, or write a function that returns a `Population`.

    Args:
        annotators: at least one teacher, such as an `Annotator`, each with its own name.
        shares: relative share of the pairs of each annotator, above 0; equal by default.

    Raises:
        SettingError: there is no annotator, two have the same name, or the shares don't fit.
    """

    name = "population"

    def __init__(self, annotators: Sequence[Teacher], shares: Sequence[float] | None = None):
        names = [annotator.name for annotator in annotators]
        if not names or len(set(names)) < len(names):
            raise SettingError(f"A population needs annotators with different names; got {names}.")
        weights = np.ones(len(names)) if shares is None else np.array(shares, dtype=np.float64)
        if weights.shape != (len(names),) or not (weights > 0).all() or not np.isfinite(weights).all():
            raise SettingError(f"A population of {len(names)} annotators needs as many shares above 0; got {shares}.")
        self.annotators, self.shares = tuple(annotators), weights / weights.sum()

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Answers:
        """See `Teacher.answer`."""
        who = rng.choice(len(self.annotators), size=len(pairs), p=self.shares)
        preferences = np.full(len(pairs), np.nan, dtype=np.float32)
        names, counts = [NOBODY] * len(pairs), Counter(pairs.answered or {})
        here, asked = np.ones(len(self.annotators), dtype=bool), np.arange(len(pairs))
        while len(asked):
            refused = []
            for number in np.unique(who).tolist():
                annotator, mine = self.annotators[number], asked[who == number]
                answers = annotator.answer(replace(pairs[mine], answered=dict(counts)), rng)
                preferences[mine], gone = plain(answers), absent(answers, len(mine))
                for i in mine[~gone].tolist():
                    names[i] = annotator.name
                counts[annotator.name] += int((~np.isnan(preferences[mine])).sum())
                here[number] &= not gone.any()
                refused.append(mine[gone])
            asked = np.sort(np.concatenate(refused)) if here.any() else asked[:0]
            shares = self.shares * here
            who = rng.choice(len(shares), size=len(asked), p=shares / shares.sum()) if len(asked) else asked
        return Answers(preferences, tuple(names))


def six_annotators(rationality: float) -> Population:
    """The built-in population: six annotators in equal shares, who err in six ways.

    ``careful`` is the oracle; ``hasty`` errs in a fifth of the answers; ``unsure`` is stochastic in the true return;
    ``left_handed`` answers left without looking in three of ten; ``tiring`` errs in one more percent per policy version, until the
    answers are guesses; ``short_sighted`` errs in up to half of the answers where the fragments look alike.

    Args:
        rationality: of ``unsure``, per unit of true return (`PreferenceSettings.rationality`).
    """
    return Population(
        [
            SimulatedTeacher("careful"),
            SimulatedTeacher("hasty", mistake=0.2),
            SimulatedTeacher("unsure", rationality=rationality),
            Annotator(SimulatedTeacher("left_handed"), side_bias=0.3),
            Annotator(SimulatedTeacher("tiring"), drift=0.01),
            Annotator(SimulatedTeacher("short_sighted"), alike=0.5),
        ]
    )


def _version(pairs: Pairs) -> IntArray:
    """The newer policy version of each pair; 0 for random actions."""
    return np.maximum(np.maximum(pairs.left.policy_versions, pairs.right.policy_versions), 0)


def _seen(fragments: Fragments) -> FloatArray:
    """The observations as one row per fragment, images scaled to [0, 1]."""
    seen: FloatArray = fragments.observations.reshape(len(fragments), -1).astype(np.float64)
    return seen / 255.0 if fragments.observations.dtype == np.uint8 else seen
