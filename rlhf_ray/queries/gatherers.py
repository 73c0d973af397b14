"""Gatherers: who gets pairs answered and commits the answers. A scripted teacher here; people at `actors.labelling_page`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.seeds import generator
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import make_teacher

Commit = Callable[[Comparisons], None]
"""Stores answers. When it returns they are on the disk; storing the same ones again changes nothing."""


class Gatherer(Protocol):
    """Gets pairs answered. It runs in an actor of its own, whose thread `ask` may keep for as long as answers take."""

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
        self.teacher = make_teacher(settings.teacher, settings)

    def ask(self, number: int, pairs: Pairs) -> None:
        """See `Gatherer.ask`. A teacher who needs no time answers all at once, others one after the other."""
        preferences = self.teacher.answer(pairs, generator(self.seed, "answers", number))
        answers = Comparisons(pairs, preferences, (self.teacher.name,) * len(pairs))
        if not self.seconds:
            self.commit(answers)
            return
        for i in range(len(answers)):
            time.sleep(self.seconds)
            self.commit(answers[i : i + 1])
