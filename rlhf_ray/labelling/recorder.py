"""Group commits: answers that arrive while others are being stored are stored together, next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rlhf_ray.store import Event

Record = Callable[[Sequence[Event]], Awaitable[object]]
"""Stores events; returns when they are on the disk."""


class GroupCommit:
    """Stores events, one batch at a time."""

    def __init__(self, record: Record):
        self._record = record
        self._waiting: list[tuple[Event, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(self, event: Event) -> None:
        """Returns when the event is stored.

        Raises:
            OSError: it could not be; it may be sent again.
            ValueError: the store refuses it.
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
            if len(batch) > 1 and isinstance(error, ValueError):  # one of them: which, shows one by one
                for one in batch:
                    await self._store([one])
                return
            failure = error
        for stored in (stored for _, stored in batch if not stored.done()):
            if failure is None:
                stored.set_result(None)
            else:
                stored.set_exception(failure)
                stored.exception()  # looked at, also where whoever waited is gone
