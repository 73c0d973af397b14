"""A panel on the file system, and a browser without network that opens it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from rlhf_ray.interpret.agent.panel import PanelData, write_panel
from tests.interpret.agent.panel.made_up import made_up

Opens = Callable[..., Page]


@pytest.fixture(scope="package")
def data() -> PanelData:
    return made_up(120, 12, 8)


@pytest.fixture(scope="package")
def index(data: PanelData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_panel(data, tmp_path_factory.mktemp("panel"))


@pytest.fixture
def opened(browser: Browser, index: Path) -> Iterator[Opens]:
    """Opens a panel from the file system, offline. Whatever its console reports, or a request elsewhere, fails the test."""
    wrong: list[str] = []
    contexts = []

    def opens(hash_: str = "", page_at: Path = index, **options: Any) -> Page:
        options.setdefault("reduced_motion", "reduce")  # a screenshot shows no fade half way
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url))
        page.goto(page_at.as_uri() + hash_)
        page.wait_for_selector("body[data-state=ready]", timeout=20_000)
        return page

    yield opens
    for context in contexts:
        context.close()
    assert not wrong
