"""A population of annotators who err differently, each under their own name."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.teachers.simulated import SimulatedTeacher
from rlhf_ray.teachers.teacher import NOBODY, Answers, Feature, Teacher, absent, plain

GUESSING = 0.5
"""Share of reversed answers of an annotator who guesses: answers reversed more often would tell the right one again."""


class Annotator:
    """A teacher whose answers pass through an annotator's own errors. Skips and ties stay as they are.

    The answer of ``teacher`` is reversed with probability ``alike * exp(-distance / scale) + drift * version``, where ``version``
    is the newer policy version of the pair (0 for random actions) and ``distance`` the root mean square difference of what the
    annotator looks at. The drift ends where the sum is one half: a tired annotator guesses. Then, with probability
    ``abs(side)``, the annotator answers the preferred side without looking, where ``side`` is ``side_bias + side_drift * version``
    within [-1, 1]. Errors depend on the pair alone, so a resumed run
    repeats them.

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

    def __init__(
        self,
        teacher: Teacher,
        *,
        side_bias: float = 0.0,
        drift: float = 0.0,
        side_drift: float = 0.0,
        alike: float = 0.0,
        scale: float = 1.0,
        feature: Feature | None = None,
    ):
        for parameter, value, valid, rule in (
            ("side_bias", side_bias, -1 <= side_bias <= 1, "between -1 (right) and 1 (left)"),
            ("drift", drift, drift >= 0, "0 or more"),
            ("side_drift", side_drift, np.isfinite(side_drift), "a finite number"),
            ("alike", alike, 0 <= alike <= 1, "between 0 and 1"),
            ("scale", scale, scale > 0, "above 0"),
        ):
            if not valid:
                raise SettingError(f"{parameter} of the annotator {teacher.name} is {value}; it must be {rule}.")
        self.name, self.teacher, self.side_bias = teacher.name, teacher, side_bias
        self.drift, self.side_drift = drift, side_drift
        self.alike, self.scale, self.feature = alike, scale, feature or _seen

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
            apart = np.sqrt(np.mean((self.feature(pairs.left) - self.feature(pairs.right)) ** 2, axis=1))
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
