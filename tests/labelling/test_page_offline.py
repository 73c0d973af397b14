"""The labelling page with a network, a proxy or a server that fails: what was answered is kept, and the page goes on."""

from typing import Any

import pytest
from playwright.sync_api import expect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.labelling.at_the_page import press, wait_fetched_ahead, wait_for_pair, wait_saved
from tests.labelling.fake_desk import changed


@pytest.mark.slow
def test_offline_and_back_loses_and_doubles_nothing(visit, desk):
    page = visit()
    first = press(page, "ArrowLeft")
    wait_saved(page)
    wait_fetched_ahead(page, desk)
    page.context.set_offline(True)
    leases = [first, *[press(page, key) for key in ("ArrowRight", "ArrowDown", "x")]]
    leases.append(wait_for_pair(page))
    page.keyboard.press("ArrowLeft")  # the last that was here
    expect(page.locator("#pair")).to_have_attribute("data-state", "waiting")
    expect(page.locator("#saved")).to_have_text("Offline, 4 queued")
    assert len(desk.answers) == 1
    page.context.set_offline(False)
    wait_saved(page)
    wait_for_pair(page)
    press(page, "ArrowRight")
    wait_saved(page)
    assert [given.lease for _, given, _ in desk.answers][:5] == leases
    assert len({given.event_id for _, given, _ in desk.answers}) == len(desk.answers) == 6


@pytest.mark.slow
def test_a_proxy_that_cannot_reach_the_server_is_no_answer_of_the_server(visit, desk, site):
    page = visit()
    wait_fetched_ahead(page, desk)
    site.proxy = lambda path: Response("<h1>Bad Gateway", 502) if path.startswith("/api/") else None
    for _ in range(3):
        press(page, "ArrowLeft")
    expect(page.locator("#saved")).to_have_text("Offline, 3 queued")
    expect(page.locator("#toast")).to_be_hidden()  # not "Bad Gateway"
    lost: list[str] = []

    def films_are_lost(path: str) -> Response | None:
        if not path.startswith("/api/films/") or len(lost) == 4:
            return None
        lost.append(path)
        return Response(status_code=504)

    site.proxy = films_are_lost
    wait_saved(page)
    for _ in range(5):
        press(page, "ArrowLeft")
    wait_saved(page)
    assert len(lost) == 4
    assert sorted(pair for _, _, pair in desk.answers) == list(range(8))  # the pairs of the lost films too


@pytest.mark.slow
@pytest.mark.parametrize("bytes_sent", [0, 40])
def test_a_film_whose_connection_falls_silent_is_asked_for_again(bytes_sent, visit, desk, site):
    """A request that nobody ever answers to its end: the laptop changed its network, a router forgot the connection."""
    lost: list[str] = []

    async def silence(scope: Scope, receive: Receive, send: Send) -> None:
        if bytes_sent:
            film = await desk.film(scope["path"].rpartition("/")[2])
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"image/webp")]})
            await send({"type": "http.response.body", "body": film[:bytes_sent], "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    def first_are_lost(path: str) -> Any:
        if path == "/static/api.js":
            return changed("api.js", "TIMEOUT_MS", 4000)  # in the place of half a minute
        if path.startswith("/api/films/") and len(lost) < 3:  # one may be of the episode beside the pair
            lost.append(path)
            return silence
        return None

    site.proxy = first_are_lost
    page = visit(ready=False)
    wait_for_pair(page)  # after the time limit
    for _ in range(3):
        press(page, "ArrowLeft")
    wait_saved(page)
    assert len(lost) == 3
    assert sorted(pair for _, _, pair in desk.answers) == [0, 1, 2]


@pytest.mark.slow
def test_undo_offline_takes_back_what_was_never_sent(visit, desk):
    page = visit()
    wait_fetched_ahead(page, desk)
    page.context.set_offline(True)
    press(page, "ArrowLeft")
    lease = press(page, "ArrowLeft")
    page.keyboard.press("z")
    page.wait_for_function("lease => document.querySelector('#pair').dataset.lease === lease", arg=lease)
    wait_for_pair(page)
    page.keyboard.press("ArrowRight")
    page.context.set_offline(False)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "right"]
    assert desk.answers[1][1].lease == lease
    assert not desk.undone


def test_a_film_that_is_not_to_be_had_stops_nobody(visit, desk):
    make = desk.make_film

    def broken_first(number: int, frames: int) -> Any:
        film = make(number, frames)
        if number == 2:
            desk.sheets[film.id] = b"no picture"
        return film

    desk.make_film = broken_first
    page = visit()
    for _ in range(3):
        press(page, "ArrowLeft")
    wait_saved(page)
    assert 1 not in [pair for _, _, pair in desk.answers]
    assert not desk.released  # or it would come again at once, for ever
