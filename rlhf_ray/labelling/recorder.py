"""The store as the desk sees it, and group commit: answers that arrive during a write are stored together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import pyarrow as pa

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import Event

Record = Callable[[Sequence[Event]], Awaitable[object]]
"""Stores events; returns when they are on disk."""


class Store(Protocol):
    """An async `PreferenceStore`."""

    async def record(self, events: Sequence[Event], fragments: Fragments | None = None) -> int:
        """See `PreferenceStore.record`."""

    async def events(self) -> pa.Table:
        """See `PreferenceStore.events`."""

    async def fragments(self, names: Sequence[str]) -> tuple[IntArray, Fragments | None]:
        """See `PreferenceStore.fragments`."""

    async def count(self) -> int:
        """Number of valid comparisons."""

    async def weights(self) -> dict[str, float]:
        """See `PreferenceStore.weights`."""

    async def weigh(self, annotator: str, weight: float) -> None:
        """See `PreferenceStore.weigh`."""


class GroupCommit:
    """Stores events, one batch at a time."""

    def __init__(self, record: Record):
        self._record = record
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
            await self._store(batch)

    async def _store(self, batch: list[tuple[Event, asyncio.Future[None]]]) -> None:
        failure: Exception | None = None
        try:
            await self._record([event for event, _ in batch])
        except Exception as error:
            if len(batch) > 1 and isinstance(error, ValueError):  # one of them is bad: find it by storing one by one
                for one in batch:
                    await self._store([one])
                return
            failure = error
        for stored in (stored for _, stored in batch if not stored.done()):
            if failure is None:
                stored.set_result(None)
            else:
                stored.set_exception(failure)
                stored.exception()  # mark as retrieved, in case the waiter is gone
