"""Stages: coroutines that work side by side in a thread of their own until there is nothing left to wait for; and their meters."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar

POLL_EVERY = 0.2
"""Polling interval in seconds of a thread that waits for the stages."""

CALLS_WITHIN = 1.5
"""Seconds for pending calls to return before the actors are stopped. A wait for people at the page takes up to 1."""

ENDS_WITHIN = 60.0
"""Seconds for the thread to end."""

_T = TypeVar("_T")


class Stages:
    """A thread whose event loop runs one coroutine per stage. Each waits with `until` for work, and `notify` wakes all.

    If a stage raises, the others continue; `check` raises its error in the caller's thread.
    """

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._news = threading.Condition()
        """Notified of everything that `wait_while` may wait for. Held without calling anything."""
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Future[None]] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="ring", daemon=True)

    # Called by other threads.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` in the thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def notify(self) -> None:
        """Wake the stages, so that each checks for work."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.wake)

    def check(self) -> None:
        """Raise the error of a stage that failed."""
        if self._failure is not None:
            raise self._failure

    def wait_while(self, waits: Callable[[], bool], look: Callable[[], None] = lambda: None) -> None:
        """Wait while ``waits`` returns True, and call ``look`` in between.

        Raises:
            Exception: a stage failed with it.
        """
        while self._failure is None and waits():
            with self._news:
                self._news.wait(POLL_EVERY)
            look()

    def end(self) -> None:
        """End all stages, and the thread."""
        self._ending = True
        if self._thread.is_alive():
            self.call(self._end())
            self._thread.join(ENDS_WITHIN)

    # Called in the thread.

    def run(self, stages: Iterable[Awaitable[None]]) -> None:
        """Run these stages from now on."""
        for stage in stages:
            task = asyncio.ensure_future(stage)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def wake(self) -> None:
        """Wake the stages, so that each checks for work."""
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    def publish(self) -> None:
        """Wake the stages and the threads in `wait_while`."""
        with self._news:
            self._news.notify_all()
        self.wake()

    async def until(self, ready: Callable[[], bool]) -> bool:
        """Wait until there is work. Return False if everything is ending."""
        while not self._ending and not ready():
            await self._changed.wait()
        return not self._ending

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _ended(self, task: asyncio.Future[None]) -> None:
        if task.cancelled() or task.exception() is None or self._ending:
            return
        with self._news:
            self._failure = task.exception()
            self._news.notify_all()

    async def _end(self) -> None:
        self.wake()
        if self._tasks:  # Ray prints a line for each pending call of a stopped actor
            await asyncio.wait(self._tasks, timeout=CALLS_WITHIN)
        for task in self._tasks:
            task.cancel()
        self._loop.call_soon(self._loop.stop)


class Meter:
    """Measures the rate and idle time of a stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._items, self._busy = 0, 0.0
        self._started: float | None = None
        self._reported = clock()

    @property
    def working(self) -> bool:
        """Whether the stage is working now."""
        return self._started is not None

    @contextmanager
    def busy(self, *, if_: bool = True) -> Any:
        """Context manager: count the time inside as work. Yields a function to call with the number of finished items."""
        self._started = self._clock() if if_ else None

        def done(items: int) -> None:
            self._items += items

        try:
            yield done
        finally:
            if self._started is not None:
                self._busy += self._clock() - max(self._started, self._reported)
            self._started = None

    def report(self, waiting: int) -> dict[str, float]:
        """Return items per second and idle share since the last report, and the number of waiting items."""
        now = self._clock()
        elapsed = max(now - self._reported, 1e-9)
        busy = self._busy + (0.0 if self._started is None else now - max(self._started, self._reported))
        report = {"rate": self._items / elapsed, "idle": 1.0 - min(1.0, busy / elapsed), "queue": float(waiting)}
        self._items, self._busy, self._reported = 0, 0.0, now
        return report
