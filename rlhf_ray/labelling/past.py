"""What people at the page said: stored in groups, and read from the store again after a restart."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.labelling.question import Shown
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import REVIEWED_BY

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """A `PreferenceStore` in another thread or process: ``await store.call(PreferenceStore.record, events)``."""

    def call(
        self, method: Callable[Concatenate[PreferenceStore, P], T], *arguments: P.args, **keywords: P.kwargs
    ) -> Awaitable[T]:
        """Call a method of the store there."""


class GroupCommit:
    """Stores events, one batch at a time."""

    def __init__(self, store: Store):
        self._store = store
        self._waiting: list[tuple[Event, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(self, event: Event) -> None:
        """Store the event; returns when it is durable.

        Raises:
            OSError: the event could not be stored; retry.
            ValueError: the store rejects the event.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, stored))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(stored)

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._write(batch)

    async def _write(self, batch: list[tuple[Event, asyncio.Future[None]]]) -> None:
        try:
            await self._store.call(PreferenceStore.record, [event for event, _ in batch])
        except Exception as error:
            if len(batch) > 1 and isinstance(error, ValueError):  # one of them is bad: find it by storing one by one
                for one in batch:
                    await self._write([one])
                return
            for _, stored in batch:
                stored.set_exception(error)
                stored.exception()  # mark as retrieved, in case the waiter is gone
        else:
            for _, stored in batch:
                stored.set_result(None)


USED_ID = "This answer is not saved: its event id belongs to another event. Reload the page and answer again."

ANSWERED = ("label", "check", "skip", "flag")
"""The event kinds that answer a question."""


@dataclass(frozen=True)
class Meaning:
    """What makes two events the same: who said what about which lease, or took which event back."""

    annotator: str
    about: str | None
    said: str


class Past:
    """Knows each event, so that none is stored twice."""

    def __init__(self, store: Store, queue: QuestionQueue):
        self._store, self._queue = store, queue
        self.leases: dict[str, str] = {}
        """The event that answered each lease: a lease takes one answer."""
        self.meanings: dict[str, Meaning] = {}
        """What each stored event says: an id is good for one event."""
        self._recalled = False
        self._recalling = asyncio.Lock()

    async def recall(self) -> None:
        """Repeat, once, what people did before this start of the page: nobody gets those pairs again, and undo goes on."""
        async with self._recalling:
            if not self._recalled:
                self._repeat((await self._store.call(PreferenceStore.events)).to_pylist())
                self._recalled = True

    def knows(self, event: str, meaning: Meaning) -> bool:
        """Whether this event is stored.

        Raises:
            ValueError: another event is, under its id.
        """
        known = self.meanings.get(event)
        if known not in (None, meaning):
            raise ValueError(USED_ID)
        return known is not None

    def _repeat(self, rows: Sequence[dict[str, Any]]) -> None:
        now = datetime.now(UTC)
        for row in rows:
            extra, annotator, event = json.loads(row["extra"] or "{}"), row["annotator"], row["event_id"]
            answer = "undo" if row["kind"] == "retract" else extra.get("answer", "")
            about = row["target"] or extra.get("lease")
            self.meanings.setdefault(event, Meaning(extra.get(REVIEWED_BY, annotator), about, answer))
            if row["annotator_type"] != "human":
                continue
            if "lease" in extra:
                self.leases[extra["lease"]] = event
            answer = answer if answer in ANSWERS else "equal"
            if row["kind"] in ANSWERED:
                how = {name: extra[name] for name in ("catch", "expected", "repeats", "overlap") if name in extra}
                shown = Shown(row["left_id"], row["right_id"], bool(row["presented_swapped"]), **how)
                when = row["t_answered"]
                # An event from before this start that is later than now: the clock was set back.
                age = math.inf if when is None or when > now else (now - when).total_seconds()
                self._queue.answered(annotator, shown, answer, event, age)
            elif row["kind"] == "supersede":
                self._queue.replaced(annotator, row["target"], event)
            elif row["kind"] == "retract":
                self._queue.taken_back(annotator, row["target"])
