"""Labels without training: what outlives the page's end; and raw sockets at its server, half-open or too large."""

import asyncio
import contextlib
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.labelling import guard
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.collect import collect, sessions_file
from rlhf_ray.labelling.films import Film
from rlhf_ray.labelling.serve import Server
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import PreferenceStore
from tests.labelling.fake_desk import FakeDesk
from tests.labelling.office import films_of, pairs_of
from tests.labelling.person import Person


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_ray.labelling.collect.LOOK_EVERY", 0.02)


def with_films(count: int, number: int) -> tuple[Pairs, list[Film]]:
    pairs = pairs_of(count, seed=number)
    return pairs, films_of(pairs)


class Page(Person):
    """A person whose browser says which page asks."""

    page = "a" * 32

    def ask(self) -> dict[str, Any]:
        return self.post("/api/questions", {"count": 1, "holding": [], "page": self.page})

    def first(self) -> dict[str, Any]:
        """The next question, once there is one."""
        while not (questions := self.ask()["questions"]):
            time.sleep(0.02)
        question: dict[str, Any] = questions[0]
        return question

    def answer_one(self) -> dict[str, Any]:
        question = self.first()
        self.answer(question, "left")
        return question


@dataclass
class Gathered:
    comparisons: int
    links: dict[str, str]
    after: float
    """Seconds from the end of the work to that of the server."""


def gather(
    store: Path,
    work: Callable[[dict[str, str]], Any],
    comparisons: int = 3,
    stop: Callable[[], bool] | None = None,
    on_end: Any = lambda pages: None,
    **options: Any,
) -> Gathered:
    """Serve the page while ``work`` does with the links what people do, or until ``stop``."""
    links: dict[str, str] = {}
    ends: list[float] = []

    def do() -> None:
        try:
            work(links)
        finally:
            ends.append(time.monotonic())

    worker = threading.Thread(target=do)

    def invite(given: dict[str, str]) -> None:
        links.update(given)
        worker.start()

    settings = LabellingSettings(**{"annotators": ("ada",), "port": 0, "catch_share": 0.0} | options)
    over = stop or (lambda: bool(ends))
    held = collect(with_films, store, settings, comparisons=comparisons, invite=invite, stop=over, on_end=on_end)
    ended = time.monotonic()
    worker.join()
    return Gathered(held, links, ended - ends[0])


def never() -> bool:
    return False


def test_nobody_waits_for_the_second_opinions_of_somebody_who_only_has_the_page_open(tmp_path: Path) -> None:
    waited: list[bool] = []

    def label(links: dict[str, str]) -> None:
        Person(links["bob"], tmp_path / "labels").question()  # on his screen
        ada, deadline = Person(links["ada"], tmp_path / "labels"), time.monotonic() + 20
        while len(ada.acknowledged) < 3 and time.monotonic() < deadline:
            if (question := ada.question()) is not None:
                ada.answer(question, "left")
        waited.append(len(ada.acknowledged) < 3)

    held = gather(tmp_path / "labels", label, annotators=("ada", "bob"), overlap_share=1.0).comparisons
    assert (held, waited) == (3, [False])


def test_links_sessions_and_kept_answers_outlive_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "labels"
    left: dict[str, Any] = {}

    def label_one(links: dict[str, str]) -> None:
        page = Page(links["ada"], store)
        page.answer_one()
        left.update(cookies=dict(page.client.cookies), lease=page.first()["lease"])

    def send_what_was_kept(links: dict[str, str]) -> None:
        base = links["ada"].split("/#")[0]
        answer = {"event_id": secrets.token_hex(16), "lease": left["lease"], "answer": "right"}
        reply = httpx.post(f"{base}/api/answers", json=answer, cookies=left["cookies"], headers={"origin": base})
        assert reply.status_code == 200, reply.text

    first, again = gather(store, label_one), gather(store, send_what_was_kept)
    assert (first.comparisons, again.comparisons) == (1, 2)
    assert first.links == again.links  # the port too
    kept = sessions_file(PreferenceStore(store))
    # Beside the store: whoever is given the store is not given the links.
    assert kept == tmp_path / "labels.labelling.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_page_whose_port_is_taken_moves_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def link() -> str:
        return gather(tmp_path / "labels", lambda links: Person(links["ada"], tmp_path / "labels")).links["ada"]

    before = link()
    port = urlsplit(before).port
    with socket.create_server(("127.0.0.1", port)):
        after = link()
    assert after.split("#token=")[1] == before.split("#token=")[1]
    moved = urlsplit(after).port
    assert [r.getMessage() for r in caplog.records if r.name.startswith("rlhf_ray")] == [
        f"Another process uses port {port}, the page's last port. The page is now at port {moved}."
    ]
    assert link() == after  # where it was last


def test_where_nothing_can_be_kept_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = PreferenceStore("memory://bucket/labels")
    assert sessions_file(store).parent == tmp_path / "state" / "rlhf_ray"


def at_the_page(store: Path, work: Callable[[Page], Any], stop: Callable[[], bool] = never, **more: Any) -> Gathered:
    return gather(store, lambda links: work(Page(links["ada"], store)), comparisons=1, stop=stop, **more)


@pytest.mark.slow
def test_the_server_stays_until_every_open_page_knows_that_the_work_is_done(tmp_path: Path) -> None:
    untold: list[int] = []

    def work(page: Page) -> None:
        page.answer_one()
        time.sleep(1.5)  # a page that asks late
        progress = page.ask()["progress"]
        assert progress["ended"]
        assert progress["over"].startswith("All labels are in")

    gathered = at_the_page(tmp_path / "labels", work, on_end=untold.append)
    assert gathered.comparisons == 1
    assert gathered.after < 1.0
    assert set(untold) == {1}


def test_the_server_waits_for_no_page_that_is_closed_or_has_vanished(tmp_path, monkeypatch):
    def close(page: Page) -> None:
        page.answer_one()
        page.post("/api/leases/release", {"leases": [], "page": page.page})

    assert at_the_page(tmp_path / "closed", close).after < 1.0
    monkeypatch.setattr("rlhf_ray.labelling.situation.OPEN_FOR", 0.3)  # instead of a minute
    assert at_the_page(tmp_path / "vanished", Page.answer_one).after < 2.0


def test_an_answer_taken_back_at_the_end_is_asked_for_again(tmp_path: Path) -> None:
    def work(page: Page) -> None:
        question = page.answer_one()
        again = page.post("/api/undo", {"event_id": secrets.token_hex(16), "page": page.page})["question"]
        assert {again["left"]["id"], again["right"]["id"]} == {question["left"]["id"], question["right"]["id"]}
        time.sleep(1.2)  # counts are up to a second old
        page.answer(again, "right")
        while not page.ask()["progress"]["over"]:  # the server may close as soon as a page shows this
            time.sleep(0.02)

    assert at_the_page(tmp_path / "labels", work).comparisons == 1


def test_stopped_work_is_told_too(tmp_path: Path) -> None:
    stop = threading.Event()
    heard: list[str] = []

    def work(page: Page) -> None:
        page.ask()
        stop.set()
        while not (over := page.ask()["progress"]["over"]):
            time.sleep(0.02)
        heard.append(over)

    assert at_the_page(tmp_path / "labels", work, stop=stop.is_set).comparisons == 0
    assert heard[0].startswith("The run was stopped, and your answers are saved")


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
