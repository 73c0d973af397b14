"""A browser, and the page of a fake desk in it."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.labelling.at_the_page import wait_for_pair
from tests.labelling.fake_desk import FakeDesk, Served, served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on this machine (chromium, chromium-browser or google-chrome on the PATH)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def site(desk: FakeDesk) -> Iterator[Served]:
    with served(desk) as site:
        yield site


@pytest.fixture
def visit(browser: Browser, site: Served) -> Iterator[Callable[..., Page]]:
    """Opens the page in a browser of its own. What goes wrong in a page, by its console, fails the test."""
    wrong: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(name: str = "ada", path: str | None = None, ready: bool = True, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        # Failed requests are the browser's to report and ours to handle; a breach of the policy is not.
        page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
        page.goto(site.link(name))
        if ready:
            wait_for_pair(page)
        if path:
            page.goto(site.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong
