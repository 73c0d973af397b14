"""Annotators who leave, and annotators of one kind who go by other names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.teachers.teacher import NOBODY, Answers, Teacher, plain


class Leaving:
    """An annotator who leaves after a number of answers, and is asked nothing from then on.

    Answers count, ties too, under this annotator's name; skips do not. `Pairs.answered` says how many there were before, so a
    resumed run goes on counting where it was; labels that a run starts from count too. In a `Population` the others get the pairs.
    Put it around any other wrapper, such as `Annotator`.

    Args:
        teacher: answers until then.
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
    """A teacher under another name in the store.

    Args:
        teacher: answers.
        name: the annotator's name in the store.
    """

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
