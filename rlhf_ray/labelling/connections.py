"""Connections to the page's server: what a client may have it hold in memory, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_HEAD = 32_768
"""Bytes of a request's first line and headers. Browsers send all cookies of a host, those of other ports too: up to some kB."""
REQUEST_WITHIN_S = 10.0
"""Seconds from connecting, or from the last response, until the headers of the next request are here."""
RESPONSE_WITHIN_S = 60.0
"""Seconds from there until the client has the response. The page gives up after 30 by itself."""
MOST_CONNECTIONS = 256
"""Open connections, above which the one that waits for its request longest is closed."""


class Connection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a time limit on every state of a connection.

    uvicorn itself limits only the time between two requests: who sends nothing, or a byte now and then, is never sent away.
    """

    _limit: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        self._wait(REQUEST_WITHIN_S)
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = (other for other in self.connections if isinstance(other, Connection) and not other._answering)
            oldest = min(waiting, key=lambda other: other._since, default=self)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Take in what has arrived; a whole head begins a cycle of request and response."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._answering:
            self._wait(RESPONSE_WITHIN_S)

    def on_response_complete(self) -> None:
        """The response is sent, whether the request was read to its end or not."""
        self._wait(REQUEST_WITHIN_S)
        super().on_response_complete()  # may begin the next cycle

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where a response was sent already, there is no place for another."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._since = self.loop.time()
        self._limit = self.loop.call_later(seconds, self.transport.abort)


def limits() -> dict[str, Any]:
    """What `uvicorn.Config` takes for all that."""
    return {"http": Connection, "h11_max_incomplete_event_size": LARGEST_HEAD}
