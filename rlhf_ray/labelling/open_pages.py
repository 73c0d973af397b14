"""Open pages: which pages are open in browsers, and which of them show that labelling is over."""

from __future__ import annotations

import time
from collections.abc import Callable

OPEN_FOR = 75.0
"""Seconds without a request after which a page counts as closed. Browsers let a page in the background run once a minute."""


class OpenPages:
    """Pages by the ids that they send, so that the server can stay until each has shown that labelling is over.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._told: set[str] = set()

    def heard(self, page: str | None, *, told: bool) -> None:
        """Note a request of ``page``; ``told``: the response says that labelling is over. Clients without an id don't count."""
        if page is None:
            return
        self._heard[page] = self._clock()
        (self._told.add if told else self._told.discard)(page)

    def closed(self, page: str | None) -> None:
        """Note that ``page`` was closed."""
        if page is not None:
            self._heard.pop(page, None)
            self._told.discard(page)

    @property
    def open(self) -> int:
        """Number of open pages."""
        now = self._clock()
        for page in [page for page, last in self._heard.items() if now - last > OPEN_FOR]:
            self.closed(page)
        return len(self._heard)

    @property
    def untold(self) -> int:
        """Number of open pages that don't know yet that labelling is over."""
        return self.open - len(self._told)
