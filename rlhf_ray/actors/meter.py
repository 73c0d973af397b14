"""Meters: measure how busy the stages of the asynchronous ring are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any


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


def report_all(meters: Mapping[str, Meter], waiting: Mapping[str, int]) -> dict[str, float]:
    """Return the reports of all stages, as ``NAME_rate``, ``NAME_idle`` and ``NAME_queue``."""
    reports = {name: meter.report(waiting.get(name, 0)) for name, meter in meters.items()}
    return {f"{name}_{what}": value for name, report in reports.items() for what, value in report.items()}
