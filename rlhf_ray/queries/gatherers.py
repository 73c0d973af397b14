"""Gatherers get pairs answered and commit the answers. The scripted one is here; `rlhf_ray.actors.labelling_page` serves people."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.data.seeds import generator
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, Teacher

Commit = Callable[[Comparisons], None]
"""Stores answers durably before it returns. Idempotent: storing the same answers again changes nothing."""


class Gatherer(Protocol):
    """Gets pairs answered. Runs in its own actor; `ask` may block its thread for as long as answers take.

    The constructor of a custom gatherer may take ``commit``, which stores `Comparisons` durably; ``settings``, the
    `PreferenceSettings`; and ``seed``, the run's seed; or any subset.
    """

    def ask(self, number: int, pairs: Pairs) -> None:
        """Get the pairs answered and commit the answers. Return when no more answers are expected.

        Args:
            number: number of this batch of pairs. After a crash, the same pairs come again with the same number.
            pairs: the pairs to ask about, in this order.
        """
        ...


class ScriptedGatherer:
    """Gets answers from a scripted teacher.

    The teacher's random generator is seeded with the batch number, so asking again gives the same answers.

    Args:
        commit: stores answers.
        settings: names the teacher; ``answer_seconds`` is the time per answer.
        seed: the run's seed.

    Raises:
        SettingError: ``settings.teacher`` names no valid teacher.
    """

    def __init__(self, commit: Commit, settings: PreferenceSettings, seed: int):
        self.commit, self.seconds, self.seed = commit, settings.answer_seconds, seed
        self.teacher: Teacher = TEACHERS.make(settings.teacher, settings=settings)

    def ask(self, number: int, pairs: Pairs) -> None:
        """See `Gatherer.ask`. Commits one answer every ``answer_seconds``, or all at once if that is 0."""
        preferences = self._checked(self.teacher.answer(pairs, generator(self.seed, "answers", number)), len(pairs))
        answers = Comparisons(pairs, preferences, (self.teacher.name,) * len(pairs))
        if not self.seconds:
            self.commit(answers)
            return
        for i in range(len(answers)):
            time.sleep(self.seconds)
            self.commit(answers[i : i + 1])

    def _checked(self, answers: FloatArray, count: int) -> FloatArray:
        preferences: FloatArray = np.asarray(answers, dtype=np.float32)
        if preferences.shape != (count,) or not ((preferences >= 0) & (preferences <= 1)).all():
            raise SettingError(
                f"preferences.teacher is {self.teacher.name!r}, and for {count} pairs it answered {_shown(answers)}: it must "
                "return a number from 0 (right) to 1 (left) for each pair, an array of shape (pairs,)."
            )
        return preferences


def _shown(value: object) -> str:
    """Format a user's value briefly, for an error message."""
    shape = f"an array of shape {value.shape}, " if isinstance(value, np.ndarray) else ""
    return shape + reprlib.repr(value.tolist() if isinstance(value, np.ndarray) else value)


GATHERERS: Registry[Gatherer] = Registry("preferences.gatherer", Gatherer, {"scripted": ScriptedGatherer})
"""Built-in gatherers by name."""


def make_gatherer(commit: Commit, settings: PreferenceSettings, seed: int) -> Gatherer:
    """Make the gatherer that ``settings.gatherer`` names.

    Raises:
        SettingError: no gatherer has this name, or it doesn't satisfy `Gatherer`.
    """
    return GATHERERS.make(settings.gatherer, commit=commit, settings=settings, seed=seed)
