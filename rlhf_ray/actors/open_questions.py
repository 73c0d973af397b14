"""OpenQuestions: the query batches sent to one gatherer, and how many of their questions are open."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray

from rlhf_ray.actors.gatherer import GathererProgress
from rlhf_ray.actors.handles import Actor, Ref, passed
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling.films import Film
from rlhf_ray.queries.gatherers import DESERTED

logger = logging.getLogger(__name__)

LOST = (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
"""Errors from reading an object whose node is gone."""


class AskedActor(Protocol):
    """An actor that gets pairs answered: a `GathererActor` or a `LabellingPage`."""

    async def ask(self, number: int, pairs: Pairs) -> None:
        """Start to get a batch of pairs answered."""
        ...

    def show(self, films: Sequence[Film]) -> Any:
        """Keep films of fragments."""
        ...

    async def wait(self, numbers: Sequence[int], changes: int) -> GathererProgress:
        """Return the state of these batches, once it differs from ``changes`` or after a short wait."""
        ...


@dataclass(frozen=True)
class ChosenPairs:
    """A batch of pairs to ask about.

    Attributes:
        number: the batch's number; it never stands for other pairs.
        pairs: reference of the pairs.
        count: number of pairs, 1 or more.
    """

    number: int
    pairs: Ref[Pairs]
    count: int


async def _nothing() -> None:
    pass


class OpenQuestions:
    """The ring's view of a gatherer.

    Only the gatherer knows which questions are open. The pairs are kept here until all are answered, to send them again to a
    restarted gatherer or in a resumed run.

    Args:
        actor: gets the pairs answered.
        name: its name in metrics.
        share: its share of all questions, 0 to 1.
        limit: maximum number of open questions; None for no limit.
        annotators: the people at the page; empty for other gatherers.
        sees_films: whether it gets the films of fragments before questions about them.
        serve: restarts the page if people can't reach it.
    """

    def __init__(
        self,
        actor: Actor[AskedActor],
        name: str,
        *,
        share: float,
        limit: int | None,
        annotators: tuple[str, ...] = (),
        sees_films: bool = False,
        serve: Callable[[], Awaitable[None]] = _nothing,
    ):
        self.actor, self.name, self.annotators, self.share, self.limit = actor, name, annotators, share, limit
        self.sees_films = sees_films
        self.seconds = 0.0
        """Seconds from request to stored answer, for the newest labels."""
        self.failed_commits = 0
        self.asked = 0
        """Total number of questions so far."""
        self.lost_questions = 0
        """Number of questions lost with a node and replaced by new ones."""
        self.last: int | None = None
        """Number of the last event that it stored, if it reports that."""
        self.pages: int | None = None
        """Number of open labelling pages; None without people."""
        self.deserted = False
        """Whether all annotators have left."""
        self._serve = serve
        self._pairs: dict[int, Ref[Pairs]] = {}
        self._open: dict[int, int] = {}
        self._asked_at: dict[int, float] = {}
        self._changes = 0

    @property
    def changes(self) -> int:
        """Number of changes that it has stored, since it was last restarted."""
        return self._changes

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        return sum(self._open.values())

    def show(self, films: Ref[tuple[Film, ...]]) -> Ref[None]:
        """Send films. Return a reference that is ready once they are there."""
        return self.actor.call(AskedActor.show, passed(films))

    async def ask(self, chosen: ChosenPairs) -> None:
        """Send a query batch.

        Raises:
            OSError: the pairs' fragments could not be stored.
        """
        number = chosen.number
        try:
            await self.actor.call(AskedActor.ask, number, passed(chosen.pairs))
        except LOST:
            self.lost_questions += chosen.count
            return
        self.asked += chosen.count
        self._pairs[number], self._open[number], self._asked_at[number] = chosen.pairs, chosen.count, time.monotonic()

    async def listen(self, read: Callable[[], Awaitable[None]] = _nothing) -> bool:
        """Wait briefly for news from the gatherer and process it. Sends open pairs again to a restarted gatherer.

        Args:
            read: awaited after something was stored, before the questions count as closed: an answer may briefly count twice, but
                must never be missing, or another question would be asked in its place.

        Returns:
            Whether something was stored.
        """
        progress = await self.actor.call(AskedActor.wait, list(self._pairs), self._changes)
        if progress.changes != self._changes:
            await read()
        if not progress.serving:
            await self._serve()
        for number in progress.unknown:
            try:
                await self.actor.call(AskedActor.ask, number, passed(self._pairs[number]))
            except LOST:
                self.lost_questions += self._forget(number)
        for number, left in progress.open.items():
            if left < self._open[number]:
                self.seconds = time.monotonic() - self._asked_at[number]
            self._open[number] = left
            if not left:
                self._forget(number)
        # A restarted gatherer counts from 0 again, and may have stored something without reporting it.
        stored = progress.changes != self._changes or bool(progress.unknown)
        self._changes = progress.changes
        self.last, self.failed_commits, self.pages = progress.last, progress.failed, progress.pages
        if progress.deserted and not self.deserted:
            logger.warning(DESERTED)
        self.deserted = progress.deserted
        return stored

    def _forget(self, number: int) -> int:
        del self._pairs[number], self._asked_at[number]
        return self._open.pop(number)

    @property
    def pairs(self) -> dict[int, Ref[Pairs]]:
        """References of the pairs with open questions, by batch number."""
        return dict(self._pairs)

    async def ask_again(self, batches: list[dict[str, Any]], put: Callable[[Pairs], Ref[Pairs]]) -> None:
        """Send the pairs from `as_arrays` again. The store recognises answers that exist already; they count once."""
        for batch in batches:
            plain = dict(batch["pairs"])
            pairs = Pairs(**plain | {"left": Fragments(**plain["left"]), "right": Fragments(**plain["right"])})
            await self.ask(ChosenPairs(batch["number"], put(pairs), len(pairs)))


def losses(gatherers: Sequence[OpenQuestions]) -> dict[str, float]:
    """Return the slowest gatherer's seconds per label, and what all lost, as metrics."""
    return {
        "label_seconds": max((questions.seconds for questions in gatherers), default=0.0),
        "questions_lost": float(sum(questions.lost_questions for questions in gatherers)),
        "commits_failed": float(sum(questions.failed_commits for questions in gatherers)),
    }


async def as_arrays(open_pairs: dict[int, Ref[Pairs]]) -> list[dict[str, Any]]:
    """Convert `OpenQuestions.pairs` to plain arrays and numbers for a checkpoint. Skips lost pairs, which new ones replace."""
    batches = []
    for number, reference in open_pairs.items():
        try:
            pairs = await reference
        except LOST:
            continue
        plain = vars(pairs) | {"left": vars(pairs.left), "right": vars(pairs.right)}
        batches.append({"number": number, "pairs": plain})
    return batches
