"""A browser, and the page of a fake desk in it; and clients of its app."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page

from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from tests.labelling.at_the_page import wait_for_pair
from tests.labelling.fake_desk import FakeDesk, Served, served
from tests.labelling.office import Office


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="module")
def kept_context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.new_page()
    yield context
    context.close()


@pytest.fixture
def context(kept_context: BrowserContext) -> Iterator[BrowserContext]:
    """As a browser of its own, with one page. The page of the test before in truth: a new one takes a second longer to start."""
    yield kept_context
    page, *others = kept_context.pages
    for other in others:
        other.close()
    page.unroute_all(behavior="ignoreErrors")
    kept_context.set_offline(False)
    with contextlib.suppress(Error):  # not at a site
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.goto("about:blank")
    page.set_viewport_size({"width": 1280, "height": 720})
    kept_context.clear_cookies()


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path / "store")


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def site(desk: FakeDesk) -> Iterator[Served]:
    with served(desk) as site:
        yield site


@pytest.fixture
def visit(browser: Browser, context: BrowserContext, site: Served) -> Iterator[Callable[..., Page]]:
    """Opens the page in a browser of its own. What goes wrong in a page, by its console, fails the test."""
    wrong: list[str] = []
    contexts: list[BrowserContext] = []
    kept = context.pages[:1]

    def pageerror(error: Error) -> None:
        wrong.append(str(error))

    def console(line: ConsoleMessage) -> None:
        # Failed requests are the browser's to report and ours to handle; a breach of the policy is not.
        if "Content Security Policy" in line.text:
            wrong.append(line.text)

    def open_page(name: str = "ada", path: str | None = None, ready: bool = True, **options: Any) -> Page:
        if kept and not options:
            page = kept.pop()
        else:
            contexts.append(browser.new_context(**options))
            page = contexts[-1].new_page()
        page.on("pageerror", pageerror)
        page.on("console", console)
        page.goto(site.link(name))
        if ready:
            wait_for_pair(page)
        if path:
            page.goto(site.url + path)
        return page

    yield open_page
    for opened in contexts:
        opened.close()
    if not kept:
        context.pages[0].remove_listener("pageerror", pageerror)
        context.pages[0].remove_listener("console", console)
    assert not wrong


def enter(app: Any, sessions: Sessions, name: str) -> TestClient:
    """A client with the session of this annotator."""
    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    assert client.post("/api/session", json={"token": sessions.people[name].token}).json()["name"] == name
    return client


@pytest.fixture
def sessions() -> Sessions:
    return Sessions.create(["ada", "grace"])


@pytest.fixture
def app(desk: FakeDesk, sessions: Sessions) -> Any:
    return create_app(
        desk, sessions, LabellingSettings(hosts=("label.example.org",), instructions="<script>alert(1)</script>"), "T"
    )


@pytest.fixture
def stranger(app: Any) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


@pytest.fixture
def ada(app: Any, sessions: Sessions) -> TestClient:
    return enter(app, sessions, "ada")


@pytest.fixture
def grace(app: Any, sessions: Sessions) -> TestClient:
    return enter(app, sessions, "grace")
