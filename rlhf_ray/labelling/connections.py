"""Limits on connections to the page's server: memory and time per client."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_HEAD = 32_768
"""Maximum bytes of a request's first line and headers. Browsers send all cookies of a host, also those of other ports: some kB."""
REQUEST_WITHIN_S = 10.0
"""Seconds from the connect or the last response to the complete headers of the next request."""
RESPONSE_WITHIN_S = 60.0
"""Seconds from the headers to the end of the response. The page itself gives up after 30 s."""
MOST_CONNECTIONS = 256
"""Maximum number of open connections; above it, the one that has waited longest for its request is closed."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a time limit on every state of a connection.

    uvicorn itself limits only the time between two requests, so it never drops a client that sends nothing, or a byte now and then.
    """

    _limit: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit; above `MOST_CONNECTIONS`, close the oldest waiting connection."""
        super().connection_made(transport)
        self._wait(REQUEST_WITHIN_S)
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = (other for other in self.connections if isinstance(other, Connection) and not other._answering)
            oldest = min(waiting, key=lambda other: other._since, default=self)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Process received data; complete headers start a request-response cycle."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._answering:
            self._wait(RESPONSE_WITHIN_S)

    def on_response_complete(self) -> None:
        """Restart the time limit after a response, even if the request was not read completely."""
        self._wait(REQUEST_WITHIN_S)
        super().on_response_complete()  # may start the next cycle

    def send_400_response(self, msg: str) -> None:
        """Reject data that is not HTTP; abort if a response was already sent."""
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
    """The keyword arguments of `uvicorn.Config` that set these limits."""
    return {"http": Connection, "h11_max_incomplete_event_size": LARGEST_HEAD}
