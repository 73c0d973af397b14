"""Gatherers get pairs answered and commit the answers. `rlhf_ray.actors.people` serves people."""

from __future__ import annotations

import copy
import reprlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons, Pairs, numbers_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import blaming
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.registry import Registry
from rlhf_ray.data.seeds import generator
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, Answers, Teacher
from rlhf_ray.teachers.teacher import absent

DESERTED = "All annotators have left: nothing more is asked, and the labels so far are all."
"""What is said when a gatherer is ``deserted``."""

Commit = Callable[[Comparisons], None]
"""Stores answers durably before it returns. Idempotent: storing the same answers again changes nothing."""

Skip = Callable[[Pairs, Sequence[str]], None]
"""Stores durably that annotators (one name per pair) skipped these pairs: nobody is asked about them again. Idempotent."""


FramesOf = Callable[[Fragments], list[Array]]
"""Returns what people would see of each fragment: its frames, ``[length + 1, height, width, 3]`` uint8."""


class Gatherer(Protocol):
    """Gets pairs answered. Runs in its own actor; `ask` may block its thread for as long as answers take.

    The constructor of a custom gatherer may take ``commit``, which stores `Comparisons` durably; ``skip``, which stores that pairs
    were skipped; ``settings``, the `PreferenceSettings`; ``seed``, the run's seed; ``machine``, the `MachineSettings`;
    ``instructions``, the task in words; ``folder``, the run's, for what must outlast a restart; and ``refer``, which asks people
    about `Pairs`, if there are any; or any subset.

    If the class has ``wants_films = True``, fragments are filmed as for people, and the constructor may also take ``films``, a
    `FramesOf`: ``films(pairs.left)`` returns the frames of the left fragments. So a vision model can be a teacher.
    """

    def ask(self, number: int, pairs: Pairs) -> None:
        """Get the pairs answered and commit the answers. Return when no more answers are expected.

        Args:
            number: number of this batch of pairs. After a crash, the same pairs come again with the same number. It never stands
                for other pairs; in a resumed run, numbers go on from a higher one.
            pairs: the pairs to ask about, in this order.
        """
        ...


class ScriptedGatherer:
    """Gets answers from a scripted teacher.

    The teacher's random generator is seeded with the batch number, so asking again gives the same answers.

    Args:
        skip: stores skips; by default, skipped pairs are only left out of the answers.

    Raises:
        SettingError: ``settings.teacher`` names no valid teacher.
    """

    def __init__(
        self, commit: Commit, settings: PreferenceSettings, seed: int, skip: Skip = lambda pairs, annotators: None
    ):
        self.commit, self.skip, self.settings, self.seed = commit, skip, settings, seed
        self.deserted = False
        """Whether nobody was there to answer some of the last pairs: all annotators have left."""
        self._counts: Counter[str] = Counter()
        """Asynchronous: the answers of each annotator, with those to pairs that were asked before the newest but answered since."""
        entries = [entry.teacher for entry in settings.annotator_entries]
        self._named = {"preferences.teacher": settings.teacher} | {
            f"preferences.annotators[{i}]": name for i, name in enumerate(entries)
        }
        self.teacher: Teacher = TEACHERS.make(settings.teacher, settings=settings)

    def ask(self, number: int, pairs: Pairs) -> None:
        """See `Gatherer.ask`. Commits one answer every ``answer_seconds`` on average, or all at once if that is 0."""
        shown = copy.deepcopy(pairs)  # a teacher may change its inputs in place
        if self.settings.mode == "asynchronous":
            self._counts |= Counter(pairs.answered or {})
            shown = replace(shown, answered=dict(self._counts))
        with blaming(self._named):
            answers = self.teacher.answer(shown, generator(self.seed, "answers", number))
        answered = self._checked(answers, len(pairs))
        there = np.flatnonzero(~absent(answered, len(pairs)))
        self._counts.update(answered.annotators[i] for i in there if not np.isnan(answered.preferences[i]))
        self.deserted = len(there) < len(pairs)
        if not self.settings.answer_seconds:
            self._store(pairs, answered, there)
            return
        waits = answer_waits(self.settings, len(there), generator(self.seed, "waits", number))
        for i, seconds in zip(there, waits.tolist(), strict=True):
            time.sleep(seconds)
            self._store(pairs, answered, np.array([i]))

    def _store(self, pairs: Pairs, said: Answers, index: IntArray) -> None:
        skipped = np.isnan(said.preferences[index])
        for rows, left_out in ((index[~skipped], False), (index[skipped], True)):
            names = tuple(said.annotators[i] for i in rows)
            if len(rows) and left_out:
                self.skip(pairs[rows], names)
            elif len(rows):
                self.commit(Comparisons(pairs[rows], said.preferences[rows], names))

    def _checked(self, answers: object, count: int) -> Answers:
        values = answers.preferences if isinstance(answers, Answers) else answers
        names = answers.annotators if isinstance(answers, Answers) else (self.teacher.name,) * count
        preferences = numbers_of(values)
        if preferences is None or preferences.shape != (count,) or len(names) != count or _outside(preferences):
            raise SettingError(
                f"preferences.teacher is {self.teacher.name!r}, and for {count} pairs it answered {_shown(answers)}: it must "
                "return a number from 0 (right) to 1 (left), or NaN to skip it, for each pair: an array of shape (pairs,)."
            )
        return Answers(preferences.astype(np.float32), tuple(names))


def answer_waits(settings: PreferenceSettings, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw the seconds that each of ``count`` answers takes, ``[count]`` float64.

    Log-normal, with mean ``answer_seconds`` and standard deviation ``answer_spread`` of the logarithm.
    """
    sigma = settings.answer_spread
    return settings.answer_seconds * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2)


def _outside(preferences: FloatArray) -> bool:
    """Return whether a preference is neither NaN nor between 0 and 1."""
    return bool(((preferences < 0) | (preferences > 1)).any())


def _shown(value: object) -> str:
    """Format a user's value briefly, for an error message."""
    shape = f"an array of shape {value.shape}, " if isinstance(value, np.ndarray) else ""
    return shape + reprlib.repr(value.tolist() if isinstance(value, np.ndarray) else value)


GATHERERS: Registry[Gatherer] = Registry("preferences.gatherer", Gatherer, {"scripted": ScriptedGatherer})
"""Built-in gatherers by name."""


def wants_films(preferences: PreferenceSettings) -> bool:
    """Return whether the gatherer that ``preferences.gatherer`` names looks at films: whether its class says so.

    Raises:
        SettingError: there is no such gatherer.
    """
    if preferences.comparisons == 0 or preferences.people_share == 1.0:  # it gets no questions
        return False
    return bool(getattr(GATHERERS.find(preferences.gatherer_in_use), "wants_films", False))


def who_sees_films(preferences: PreferenceSettings) -> str | None:
    """Return the setting because of which films are needed, for errors; None if nobody looks at films."""
    if preferences.asks_people:
        return "preferences.teacher is human"
    if preferences.asks_machine:
        return f"preferences.teacher is {preferences.teacher}"
    return f"preferences.gatherer={preferences.gatherer} wants films" if wants_films(preferences) else None


def make_gatherer(settings: PreferenceSettings, **offered: Any) -> Gatherer:
    """Make the gatherer in use. ``offered`` are further arguments that it may take (see `Gatherer`), None for those there are not.

    Raises:
        SettingError: no gatherer has this name, or it doesn't satisfy `Gatherer`.
    """
    there = {name: value for name, value in offered.items() if value is not None}
    return GATHERERS.make(settings.gatherer_in_use, settings=settings, **there)
