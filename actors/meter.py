"""Meters: how busy the stages of the asynchronous ring are."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any


class Meter:
    """How busy a stage was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._items, self._busy = 0, 0.0
        self._started: float | None = None
        self._reported = clock()

    @property
    def working(self) -> bool:
        """Whether the stage is at work now."""
        return self._started is not None

    @contextmanager
    def busy(self, *, if_: bool = True) -> Any:
        """Within it the stage is at work. What it gives takes how many things were done."""
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
        """Since the last report: things done per second and the share of time it was idle; and how many wait for it now."""
        now = self._clock()
        elapsed = max(now - self._reported, 1e-9)
        busy = self._busy + (0.0 if self._started is None else now - max(self._started, self._reported))
        report = {"rate": self._items / elapsed, "idle": 1.0 - min(1.0, busy / elapsed), "queue": float(waiting)}
        self._items, self._busy, self._reported = 0, 0.0, now
        return report
