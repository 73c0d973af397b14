"""Stages: one station of the asynchronous ring each, with one call under way at most, and how busy it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stage:
    """Calls one actor, one call at a time.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.call: Any = None
        """The reference that is ready when the call under way is done; None while idle."""
        self._clock = clock
        self._finish: Callable[[], int] = lambda: 0
        self._items = 0
        self._busy = 0.0
        self._started = self._reported = clock()

    def start(self, call: Any, finish: Callable[[], int]) -> None:
        """A call was made. ``finish`` takes what it gave, once it is ready, and says how many things were done."""
        self.call, self._finish, self._started = call, finish, self._clock()

    def done(self) -> None:
        """The call is ready: take what it gave. From here on the stage is idle, unless taking it starts another call."""
        self._busy += self._clock() - max(self._started, self._reported)
        self.call = None
        self._items += self._finish()

    def report(self, waiting: int) -> dict[str, float]:
        """Since the last report: things done per second and the share of time it was idle; and how many wait for it now."""
        now = self._clock()
        elapsed = max(now - self._reported, 1e-9)
        busy = self._busy + (0.0 if self.call is None else now - max(self._started, self._reported))
        report = {"rate": self._items / elapsed, "idle": 1.0 - min(1.0, busy / elapsed), "queue": float(waiting)}
        self._items, self._busy, self._reported = 0, 0.0, now
        return report
