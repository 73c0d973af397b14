"""Limits on connections, checks on every request before it reaches the app, and security headers on every response.

The page runs on a researcher's machine, beside browsers that visit hostile pages. The guard therefore allows only known hosts
(against DNS rebinding), state changes only from the page's own origin and as JSON, and calls under ``/api`` only with a session
(new routes get this automatically). It limits body size and request rate, and its headers keep other sites from embedding the page.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import h11
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlhf_ray.labelling.sessions import HEADER, Sessions

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LARGEST_BODY = 16_384
"""Maximum bytes of a request body. The largest legitimate request, 36 leases, has 15 kB."""
BODY_WITHIN_S = 10.0
LARGEST_HEAD = 32_768
"""Maximum bytes of a request's first line and headers. Browsers send all cookies of a host, also those of other ports: some kB."""
REQUEST_WITHIN_S = 10.0
"""Seconds from the connect or the last response to the complete headers of the next request."""
RESPONSE_WITHIN_S = 60.0
"""Seconds from the headers to the end of the response. The page itself gives up after 30 s."""
MOST_CONNECTIONS = 256
"""Maximum number of open connections; above it, the one that has waited longest for its request is closed."""
CONTENT_SECURITY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Limiter:
    """Token buckets: `burst` requests per key, refilled at `rate` per second. Drops the least recently used keys first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic, keys: int = 1024):
        self._rate, self._burst, self._clock, self._keys = rate, burst, clock, keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Take a token of `key`; returns 0, or if none is left the seconds until the next one."""
        now = self._clock()
        left, then = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        missing = 1.0 - left
        self._buckets[key] = (left if missing > 0 else left - 1.0, now)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return max(0.0, missing / self._rate)


def too_fast(seconds: float) -> HTTPException:
    """The rejection (429) of a request above the rate limit; `seconds` until a retry."""
    detail = "too many requests; the page retries automatically"
    return HTTPException(429, detail, {"retry-after": str(math.ceil(seconds))})


def parse_host(value: str) -> tuple[str, str] | None:
    """Split ``name:port`` into (lower-case name, port or ""); None if it is not a valid host."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", value)
    return (match[1].lower(), match[2] or "") if match else None


def parse_hosts(names: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Split host names into (name, port); an empty port stands for any port.

    Raises:
        ValueError: a name is not a valid host.
    """
    hosts = {name: parse_host(name) for name in names}
    if bad := [name for name, host in hosts.items() if host is None]:
        raise ValueError(
            f"hosts {bad} are invalid; write names as browsers show them, like label.example.org or 10.0.0.5:8000"
        )
    return frozenset(host for host in hosts.values() if host)


class Guard(BaseHTTPMiddleware):
    """Middleware with the checks above. Puts the annotator and their session into ``request.state``.

    Args:
        app: the app to guard.
        sessions: the annotators' sessions.
        hosts: more host names of the page, from `parse_hosts`. Loopback names are always allowed.
        open_calls: (method, path) of calls under ``/api`` that need no session.
    """

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        hosts: frozenset[tuple[str, str]],
        open_calls: frozenset[tuple[str, str]],
    ):
        super().__init__(app)
        self._sessions, self._open = sessions, open_calls
        loopback = {(name, "") for name in LOOPBACK}
        self._hosts = hosts | loopback
        # Without loopback, or any program on this machine would be trusted.
        self._configured = hosts - loopback
        self._calls = Limiter(rate=50, burst=200)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Reject the request or pass it on."""
        try:
            await self._check(request)
            response = await call_next(request)
        except HTTPException as refusal:
            response = JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)
        response.headers.update(HEADERS)
        response.headers.setdefault("cache-control", "no-store")
        return response

    async def _check(self, request: Request) -> None:
        self._check_host(request.headers)
        if request.method in ("GET", "HEAD"):
            self._check_session(request)
            return
        if request.method not in ("POST", "DELETE"):
            raise HTTPException(405, "method not allowed", {"allow": "GET, POST, DELETE"})
        self._check_origin(request.headers)
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send application/json")
        self._check_session(request)
        await self._receive(request)

    async def _receive(self, request: Request) -> None:
        """Wait for the body, which the app gets from the request."""
        length = request.headers.get("content-length", "")
        if not re.fullmatch("[0-9]{1,20}", length):
            raise HTTPException(411, "the request has no valid Content-Length")
        if int(length) > LARGEST_BODY:
            raise HTTPException(413, f"a request body may have at most {LARGEST_BODY} bytes")
        try:
            await asyncio.wait_for(request.body(), BODY_WITHIN_S)
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {BODY_WITHIN_S:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the connection was closed before the end of the request body") from None

    def _check_host(self, headers: Headers) -> None:
        values = headers.getlist("host")
        host = parse_host(values[0]) if len(values) == 1 else None
        if host is None:
            raise HTTPException(400, "the request has no valid Host header")
        if not self._hosts & {host, (host[0], "")}:
            raise HTTPException(
                421,
                f"This page is not known as {host[0]}: restart with --labelling.hosts {host[0]}, or open the printed link.",
            )

    def _check_origin(self, headers: Headers) -> None:
        """Reject cross-site requests. Browsers send the origin; other programs send none and have no cookies to abuse."""
        origin = headers.get("origin")
        same_site = headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if same_site and origin is None:
            return
        scheme, _, netloc = (origin or "").partition("://")
        host, asked = parse_host(netloc), parse_host(headers["host"])
        if not same_site or scheme not in ("http", "https") or host is None or asked is None:
            raise HTTPException(403, "this request comes from another site")
        if netloc.lower() == headers["host"].lower():
            return
        # A proxy may use another name for us than the browser uses for the proxy, or no port; trust configured names for that.
        # Another port of the same name is another program.
        if self._configured & {host, (host[0], "")} and not (host[0] == asked[0] and asked[1]):
            return
        name = netloc if host[0] in LOOPBACK else host[0]
        remedy = "" if host[0] == asked[0] else f"restart with --labelling.hosts {name}, or "
        raise HTTPException(
            403,
            f"This request comes from another site, {netloc}. If that is your proxy, {remedy}let it pass on the Host header "
            "unchanged.",
        )

    def _check_session(self, request: Request) -> None:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        # The header has the session of the page that sends the request; the cookie, the last one opened in this browser.
        session = request.headers.get(HEADER, request.cookies.get(self._sessions.cookie_name, ""))
        person = self._sessions.who(session)
        request.state.person, request.state.session = person, session
        if path != "/api" and not path.startswith("/api/"):
            return
        if person is None:
            if (request.method, path) not in self._open:
                raise HTTPException(401, "this needs a session: open the page with your own link")
        elif seconds := self._calls.wait(person.name):
            raise too_fast(seconds)


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
