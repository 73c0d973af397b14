"""What somebody who waits for people's answers gets to see: progress and, if nobody answers, an alarm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

NOBODY_AFTER = 300.0
"""Seconds without an answer to open questions after which `PeopleWait.alarm` says so."""


def spoken(seconds: float) -> str:
    """Format a duration, such as "45 s", "13 min" or "2.5 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class PeopleWait:
    """A wait for people, at one moment.

    Attributes:
        answered, wanted: answers so far, and how many end the wait.
        seconds: since the wait began.
        quiet: seconds since the last answer, or since the wait began.
        pages: number of open labelling pages; None if unknown.
    """

    answered: int
    wanted: int
    seconds: float
    quiet: float
    pages: int | None = None

    def __str__(self) -> str:
        """The progress in one line."""
        line = f"waiting for people: {self.answered} of {self.wanted} answered, {spoken(self.seconds)}"
        return f"{line}, the last answer {spoken(self.quiet)} ago" if 60 <= self.quiet < self.seconds else line

    @property
    def alarm(self) -> str | None:
        """What is wrong if nobody answers; None otherwise."""
        if self.quiet < NOBODY_AFTER:
            return None
        pages = {None: "", 0: ", and no labelling page is open"}.get(
            self.pages, f"; open labelling pages: {self.pages}"
        )
        return f"Nobody has answered for {spoken(self.quiet)} ({self.answered} of {self.wanted} answered){pages}."


class Waiting:
    """Follows waits for people, and reports each at most once a second."""

    EVERY = 1.0

    def __init__(self, report: Callable[[PeopleWait], None], clock: Callable[[], float] = time.monotonic):
        self._report, self._clock = report, clock
        self._since: float | None = None
        self._answered, self._answered_at, self._reported = 0, 0.0, 0.0

    def look(self, answered: int, wanted: int, pages: int | None = None) -> None:
        """Note where the wait is; the first call begins it."""
        now = self._clock()
        if self._since is None:
            self._since = self._answered_at = now
            self._answered, self._reported = answered, now - self.EVERY
        if answered != self._answered:
            self._answered, self._answered_at = answered, now
        if now - self._reported >= self.EVERY:
            self._reported = now
            self._report(PeopleWait(answered, wanted, now - self._since, now - self._answered_at, pages))

    def end(self) -> None:
        """The wait is over."""
        self._since = None
