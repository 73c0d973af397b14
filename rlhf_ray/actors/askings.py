"""Askings: the query batches sent to one gatherer, and how many of their questions are open."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from rlhf_ray.actors.gatherer import GathererProgress
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.gatherers import DESERTED

logger = logging.getLogger(__name__)

LOST = (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
"""Errors from reading an object whose node is gone."""


async def _nothing() -> None:
    pass


class Askings:
    """The ring's view of a gatherer.

    Only the gatherer knows which questions are open. The pairs are kept here until all are answered, to send them again to a
    restarted gatherer or in a resumed run.

    Args:
        actor: the gatherer: a `GathererActor`, or an object with its `ask` and `wait`.
        name: its name in metrics.
        share: its share of all questions, 0 to 1.
        most: maximum number of open questions; None for no limit.
        annotators: the people at the page; empty for other gatherers.
        serve: restarts the page if people can't reach it.
    """

    def __init__(
        self,
        actor: Any,
        name: str,
        *,
        share: float,
        most: int | None,
        annotators: tuple[str, ...] = (),
        serve: Callable[[], Awaitable[None]] = _nothing,
    ):
        self.actor, self.name, self.annotators, self.share, self.most = actor, name, annotators, share, most
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
        self._pairs: dict[int, Any] = {}
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

    async def ask(self, number: int, pairs: Any, count: int) -> None:
        """Send a query batch.

        Args:
            number: its number.
            pairs: reference of the pairs.
            count: number of pairs.

        Raises:
            OSError: the pairs' fragments could not be stored.
        """
        try:
            await self.actor.ask.remote(number, pairs)
        except LOST:
            self.lost_questions += count
            return
        self.asked += count
        self._pairs[number], self._open[number], self._asked_at[number] = pairs, count, time.monotonic()

    async def listen(self, read: Callable[[], Awaitable[None]] = _nothing) -> bool:
        """Wait briefly for news from the gatherer and process it. Sends open pairs again to a restarted gatherer.

        Args:
            read: awaited after something was stored, before the questions count as closed: an answer may briefly count twice, but
                must never be missing, or another question would be asked in its place.

        Returns:
            Whether something was stored.
        """
        progress: GathererProgress = await self.actor.wait.remote(list(self._pairs), self._changes)
        if progress.changes != self._changes:
            await read()
        if not progress.serving:
            await self._serve()
        for number in progress.unknown:
            try:
                await self.actor.ask.remote(number, self._pairs[number])
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
    def pairs(self) -> dict[int, Any]:
        """References of the pairs with open questions, by batch number."""
        return dict(self._pairs)

    async def ask_again(self, state: list[dict[str, Any]], put: Callable[[Any], Any]) -> None:
        """Send the pairs from `open_questions` again. The store recognises answers that exist already; they count once."""
        for asking in state:
            plain = dict(asking["pairs"])
            pairs = Pairs(**plain | {"left": Fragments(**plain["left"]), "right": Fragments(**plain["right"])})
            await self.ask(asking["number"], put(pairs), len(pairs))


async def open_questions(pairs: dict[int, Any]) -> list[dict[str, Any]]:
    """Convert `Askings.pairs` to plain arrays and numbers for a checkpoint. Skips lost pairs, which new ones replace."""
    kept = []
    for number, reference in pairs.items():
        try:
            of: Pairs = await reference
        except LOST:
            continue
        kept.append({"number": number, "pairs": vars(of) | {"left": vars(of.left), "right": vars(of.right)}})
    return kept
