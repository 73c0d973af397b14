"""The store as the desk sees it, and group commit: answers that arrive during a write are stored together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rlhf_ray.store import Event, PreferenceStore

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
