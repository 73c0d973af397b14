"""Raw sockets at the page's real server: what is half-open is closed, what is too large is refused, and people get through."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from rlhf_ray.labelling import guard
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.serve import Server
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from tests.labelling.fake_desk import FakeDesk

SESSIONS = Sessions.create(["ada", "bob"])
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FORBIDDEN = b"POST /api/answers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The page, with its limits shortened."""
    ready, stop, ports = threading.Event(), threading.Event(), list[int]()

    async def serve() -> None:
        server = Server(create_app(FakeDesk(), SESSIONS, LabellingSettings(), ""), LabellingSettings(port=0))
        await server.start()
        ports.append(server.port)
        ready.set()
        await asyncio.to_thread(stop.wait)
        await server.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "REQUEST_WITHIN_S", 0.4)
        patch.setattr(guard, "RESPONSE_WITHIN_S", 0.5)
        patch.setattr(guard, "MOST_CONNECTIONS", 60)
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert ready.wait(30)
        yield ports[0]
        stop.set()
        thread.join(30)


def closed(connection: socket.socket, within_s: float = 5.0) -> bytes:
    """What came until the server closed the connection; a server that does not is an error."""
    connection.settimeout(within_s)
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65536):
            received += more
    return received


@pytest.fixture
def enter(port: int) -> Iterator[Callable[..., int]]:
    """Comes with a token; the answer's status."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield lambda token, **headers: client.post("/api/session", json={"token": token}, headers=headers).status_code


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"", b""),
        (b"GET", b"T"),
        (HEAD, b"x"),
        (POST + b"Content-Length: 900\r\n\r\n{", b" "),  # a body that does not end
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"1\r\n \r\n"),
        (FORBIDDEN + b"Content-Length: 900\r\n\r\n", b" "),  # answered before its body is here
        (HEAD + b"\r\n", b""),  # answered, and kept open
        (HEAD + b"\r\n" + HEAD, b"x"),  # answered, and begun anew
    ],
)
def test_half_open_connections_are_closed_however_they_are_fed(port: int, begin: bytes, drip: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(begin)
        until = time.monotonic() + 3
        with contextlib.suppress(ConnectionError):
            while drip and time.monotonic() < until:
                connection.sendall(drip)
                time.sleep(0.05)
            closed(connection)
        assert time.monotonic() < until


def test_headers_are_not_taken_without_end(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(10)
        sent = 0
        with contextlib.suppress(ConnectionError):
            connection.sendall(HEAD)
            while sent < 64 << 20:
                connection.sendall(b"X: " + b"a" * 65000 + b"\r\n")
                sent += 65005
        assert sent < 8 << 20  # what fits into the sockets' own buffers


def test_headers_of_ordinary_size_are(port: int) -> None:
    cookies = "; ".join(f"other{k}={'x' * 500}" for k in range(40))
    assert httpx.get(f"http://127.0.0.1:{port}/", headers={"cookie": cookies}).status_code == 200


def test_nonsense_after_an_answer_is_cut_off(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(FORBIDDEN + b"Transfer-Encoding: chunked\r\n\r\n")
        time.sleep(0.2)
        connection.sendall(b"zz\r\nno chunk\r\n")
        assert closed(connection).startswith(b"HTTP/1.1 401")
    assert not caplog.records


def test_people_get_through_a_crowd_of_half_open_connections(port: int, enter: Callable[..., int]) -> None:
    with contextlib.ExitStack() as crowd:
        opened = [crowd.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(80)]
        for connection in opened:
            with contextlib.suppress(ConnectionError):  # the first ones had to go
                connection.sendall(HEAD)
        assert enter(SESSIONS.people["ada"].token) == 200
        assert all(closed(connection) == b"" for connection in opened)


def test_guesses_through_a_proxy_are_counted_by_client(enter: Callable[..., int]) -> None:
    def guess(forwarded: str) -> int:
        return enter("guess", **{"X-Forwarded-For": forwarded})

    assert 429 in [guess("203.0.113.5") for _ in range(30)]
    assert guess("203.0.113.6") == 401
    # What a client itself puts there comes before what the proxy appends. On a busy machine, a guess has come back meanwhile.
    assert 429 in [guess("198.51.100.1, 203.0.113.5") for _ in range(5)]
