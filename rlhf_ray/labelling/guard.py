"""Checks on every request before it reaches the app, and security headers on every response.

The page runs on a researcher's machine, beside browsers that visit hostile pages. The guard therefore allows only known hosts
(against DNS rebinding), state changes only from the page's own origin and as JSON, and calls under ``/api`` only with a session
(new routes get this automatically). It limits body size and request rate, and its headers keep other sites from embedding the page.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_ray.labelling.sessions import HEADER, Sessions

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LARGEST_BODY = 16_384
"""Maximum bytes of a request body. The largest legitimate request, 36 leases, has 15 kB."""
BODY_WITHIN_S = 10.0
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


class RefusedError(Exception):
    """A request was rejected."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def too_fast(seconds: float) -> RefusedError:
    """The rejection (429) of a request above the rate limit; `seconds` until a retry."""
    return RefusedError(
        429, "too many requests; the page retries automatically", {"retry-after": str(math.ceil(seconds))}
    )


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


class Guard:
    """ASGI middleware with the checks above. Puts the annotator and their session into ``request.state``.

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
        self._app, self._sessions, self._open = app, sessions, open_calls
        loopback = {(name, "") for name in LOOPBACK}
        self._hosts = hosts | loopback
        # Without loopback, or any program on this machine would be trusted.
        self._given = hosts - loopback
        self._calls = Limiter(rate=50, burst=200)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request or pass it on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            received = await self._check(scope, receive)
        except RefusedError as refusal:
            await refuse(refusal, with_headers)
            return
        if received is not None:
            await self._app(scope, received, with_headers)

    async def _check(self, scope: Scope, receive: Receive) -> Receive | None:
        """Check the request; returns the app's `receive`, or None if the client has disconnected."""
        headers, method = Headers(scope=scope), scope["method"]
        self._check_host(headers)
        if method in ("GET", "HEAD"):
            self._check_session(scope, headers)
            return receive
        if method not in ("POST", "DELETE"):
            raise RefusedError(405, "method not allowed", {"allow": "GET, POST, DELETE"})
        self._check_origin(headers)
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "send application/json")
        self._check_session(scope, headers)
        try:
            body = await asyncio.wait_for(read_body(headers, receive), BODY_WITHIN_S)
        except TimeoutError:
            raise RefusedError(408, f"the request body did not arrive within {BODY_WITHIN_S:g} s") from None
        return None if body is None else replay(body, receive)

    def _check_host(self, headers: Headers) -> None:
        values = headers.getlist("host")
        host = parse_host(values[0]) if len(values) == 1 else None
        if host is None:
            raise RefusedError(400, "the request has no valid Host header")
        if host not in self._hosts and (host[0], "") not in self._hosts:
            raise RefusedError(
                421,
                f"This page is not known as {host[0]}: restart with --labelling.hosts {host[0]}, or open the printed link.",
            )

    def _check_origin(self, headers: Headers) -> None:
        """Reject cross-site requests. Browsers send the origin; other programs send none and have no cookies to abuse."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise RefusedError(403, "this request comes from another site")
        if (origin := headers.get("origin")) is None:
            return
        try:
            parts = urlsplit(origin)
        except ValueError:
            parts = urlsplit("")
        host, asked = (
            parse_host(parts.netloc) if parts.scheme in ("http", "https") else None,
            parse_host(headers["host"]),
        )
        if host is not None and asked is not None:
            if parts.netloc.lower() == headers["host"].lower():
                return
            # A proxy may use another name for us than the browser uses for the proxy, or no port; trust configured names for that.
            # Another port of the same name is another program.
            if self._given & {host, (host[0], "")} and not (host[0] == asked[0] and asked[1]):
                return
            name = parts.netloc if host[0] in LOOPBACK else host[0]
            named = "" if host[0] == asked[0] else f"restart with --labelling.hosts {name}, or "
            raise RefusedError(
                403,
                f"This request comes from another site, {parts.netloc}. If that is your proxy, {named}let it pass on the Host "
                "header unchanged.",
            )
        raise RefusedError(403, "this request comes from another site")

    def _check_session(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        session = self._session(headers)
        person = self._sessions.who(session)
        scope.setdefault("state", {}).update(person=person, session=session)
        if path != "/api" and not path.startswith("/api/"):
            return
        if person is None:
            if (scope["method"], path) not in self._open:
                raise RefusedError(401, "this needs a session: open the page with your own link")
        elif seconds := self._calls.wait(person.name):
            raise too_fast(seconds)

    def _session(self, headers: Headers) -> str:
        """The session of the page that sends the request; without the header, the cookie's: the last one opened in this browser."""
        if HEADER in headers:
            return headers[HEADER]
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._sessions.cookie_name)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


async def read_body(headers: Headers, receive: Receive) -> bytes | None:
    """The whole body, chunked or not; None if the client disconnected. Raises RefusedError above `LARGEST_BODY`."""
    body, more = b"", True
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 9 or int(declared) > LARGEST_BODY):
        more, body = False, b" " * (LARGEST_BODY + 1)
    while more and len(body) <= LARGEST_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > LARGEST_BODY:
        raise RefusedError(413, f"a request body may have at most {LARGEST_BODY} bytes")
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body already read, then continues with the real one."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def refuse(refusal: RefusedError, send: Send) -> None:
    """Send the rejection as JSON."""
    body = json.dumps({"detail": refusal.detail}).encode()
    headers: dict[str, Any] = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
