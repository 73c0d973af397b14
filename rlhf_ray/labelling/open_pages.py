"""Open pages: which pages are open in browsers, and which of them show that labelling is over, and the last episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

OPEN_FOR = 75.0
"""Seconds without a request after which a page counts as closed. Browsers let a page in the background run once a minute."""


@dataclass
class _Page:
    heard: float
    """Time of its last request."""
    told: bool = False
    """Whether it shows that labelling is over."""
    saw: str = ""
    """Id of the newest film of an episode that it fetched."""


class OpenPages:
    """Pages by the ids that they send, so that the server can stay until each has shown that labelling is over.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._pages: dict[str, _Page] = {}
        self.episode = ""
        """Id of the film of the agent's latest episode."""

    def heard(self, page: str | None, *, told: bool) -> None:
        """Note a request of ``page``; ``told``: the response says that labelling is over. Clients without an id don't count."""
        if page is not None:
            known = self._pages.setdefault(page, _Page(0.0))
            known.heard, known.told = self._clock(), told

    def saw(self, page: str | None, film: str) -> None:
        """Note that ``page`` fetched the ``film`` of an episode."""
        if page in self._pages:
            self._pages[page].saw = film

    def closed(self, page: str | None) -> None:
        """Note that ``page`` was closed."""
        self._pages.pop(page or "", None)

    def _open(self) -> list[_Page]:
        now = self._clock()
        self._pages = {name: page for name, page in self._pages.items() if now - page.heard <= OPEN_FOR}
        return list(self._pages.values())

    @property
    def open(self) -> int:
        """Number of open pages."""
        return len(self._open())

    @property
    def uninformed(self) -> int:
        """Number of open pages that don't know yet that labelling is over, or lack the latest episode."""
        return sum(not page.told or page.saw != self.episode for page in self._open())
