"""Gatherers get pairs answered and commit the answers. The scripted one is here; people's is `rlhf_ray.actors.labelling_page`."""

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
"""Stores answers. When it returns they are on the disk; storing the same ones again changes nothing."""


class Gatherer(Protocol):
    """Gets pairs answered. It runs in an actor of its own, whose thread `ask` may keep for as long as answers take.

    One of your own is made with those that it takes of: ``commit``, which stores `Comparisons` (and waits until they are on the
    disk); ``settings``, the `PreferenceSettings`; and ``seed``, of the run.
    """

    def ask(self, number: int, pairs: Pairs) -> None:
        """Get the pairs answered and commit what was said; return when there is nothing left to wait for.

        Args:
            number: of the asking. After a crash the same pairs are asked about again with the same number.
            pairs: to ask about, in this order.
        """
        ...


class ScriptedGatherer:
    """Asks a scripted teacher.

    The teacher's chances come from a generator seeded with the asking's number, so that asking again gives the same answers.

    Args:
        commit: stores answers.
        settings: which teacher, and how long it takes for an answer.
        seed: of the run.
    """

    def __init__(self, commit: Commit, settings: PreferenceSettings, seed: int):
        self.commit, self.seconds, self.seed = commit, settings.answer_seconds, seed
        self.teacher: Teacher = TEACHERS.make(settings.teacher, settings=settings)

    def ask(self, number: int, pairs: Pairs) -> None:
        """See `Gatherer.ask`. A teacher who needs no time answers all at once, others one after the other."""
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
                f"preferences.teacher is {self.teacher.name!r}, and asked about {count} pairs it answered {_shown(answers)}: it "
                "must give a number from 0 (right) to 1 (left) for each pair, an array of shape (pairs,)."
            )
        return preferences


def _shown(value: object) -> str:
    """A value of a user's, short enough for a line."""
    shape = f"an array of shape {value.shape}, " if isinstance(value, np.ndarray) else ""
    return shape + reprlib.repr(value.tolist() if isinstance(value, np.ndarray) else value)


GATHERERS: Registry[Gatherer] = Registry("preferences.gatherer", Gatherer, {"scripted": ScriptedGatherer})
"""By name."""


def make_gatherer(commit: Commit, settings: PreferenceSettings, seed: int) -> Gatherer:
    """The gatherer that ``settings`` name.

    Raises:
        SettingError: there is none of this name, or it is no `Gatherer`.
    """
    return GATHERERS.make(settings.gatherer, commit=commit, settings=settings, seed=seed)
