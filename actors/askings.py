"""Askings: what the ring has asked of one gatherer, and how many of those questions are open."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from rlhf_ray.actors.gatherer import GathererProgress
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments

LOST = (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
"""What reading an object raises when the node that held it is gone."""


async def _nothing() -> None:
    pass


class Askings:
    """A gatherer, as the ring sees it.

    The gatherer alone knows which questions are open. The pairs are kept here until all have an answer, because a gatherer that
    was restarted has to be asked again, and a run that is resumed too.

    Args:
        actor: the gatherer: a `GathererActor`, or what has its `ask` and `wait`.
        name: for metrics.
        share: of all questions that it is asked, 0 to 1.
        most: questions open at a time, at most; None: as many as are due.
        annotators: the people at the page; none where it is no page.
        serve: brings it back where people can't reach it any more.
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
        """From asking to storing, of the labels that were stored last."""
        self.failed_commits = 0
        self.asked = 0
        """Questions so far."""
        self.lost_questions = 0
        """Questions that went with the node they were on. They are replaced by new ones."""
        self.last: int | None = None
        """The number of the last event that it stored, where it tells."""
        self._serve = serve
        self._pairs: dict[int, Any] = {}
        self._open: dict[int, int] = {}
        self._asked_at: dict[int, float] = {}
        self._changes = 0

    @property
    def open(self) -> int:
        """Questions asked and not answered yet."""
        return sum(self._open.values())

    async def ask(self, number: int, pairs: Any, count: int) -> None:
        """Ask about ``count`` pairs, a reference.

        Raises:
            OSError: their clips could not be stored.
        """
        try:
            await self.actor.ask.remote(number, pairs)
        except LOST:
            self.lost_questions += count
            return
        self.asked += count
        self._pairs[number], self._open[number], self._asked_at[number] = pairs, count, time.monotonic()

    async def listen(self, read: Callable[[], Awaitable[None]] = _nothing) -> bool:
        """Wait a little for something to happen at the gatherer, and take note of it. Whether something was stored.

        One that was restarted is asked again.

        Args:
            read: is awaited when something was stored, before those questions count as open no more: an answer may count twice
                for a moment, but never not at all, or its question would be asked in the place of one that is due.
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
        # One that was restarted counts from 0 again, and may have stored something that it did not get to tell.
        stored = progress.changes != self._changes or bool(progress.unknown)
        self._changes = progress.changes
        self.last, self.failed_commits = progress.last, progress.failed
        return stored

    def _forget(self, number: int) -> int:
        del self._pairs[number], self._asked_at[number]
        return self._open.pop(number)

    @property
    def pairs(self) -> dict[int, Any]:
        """The references of the pairs that have questions open, by the number of the asking."""
        return dict(self._pairs)

    async def ask_again(self, state: list[dict[str, Any]], put: Callable[[Any], Any]) -> None:
        """Ask about what `open_questions` kept. What was answered since is known to the store, and is not counted twice."""
        for asking in state:
            plain = dict(asking["pairs"])
            pairs = Pairs(**plain | {"left": Fragments(**plain["left"]), "right": Fragments(**plain["right"])})
            await self.ask(asking["number"], put(pairs), len(pairs))


async def open_questions(pairs: dict[int, Any]) -> list[dict[str, Any]]:
    """What a checkpoint keeps of `Askings.pairs`, in plain arrays and numbers. Pairs that are lost are replaced by new ones."""
    kept = []
    for number, reference in pairs.items():
        try:
            of: Pairs = await reference
        except LOST:
            continue
        kept.append({"number": number, "pairs": vars(of) | {"left": vars(of.left), "right": vars(of.right)}})
    return kept
