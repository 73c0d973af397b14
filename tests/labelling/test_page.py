"""Whole sessions at the labelling page, in a real browser: nothing that somebody answered is lost or doubled."""

import threading
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.labelling.at_the_page import UNSEEN_MS, lease_of, press, wait_for_pair, wait_saved, wait_until
from tests.labelling.fake_desk import FakeDesk

ANSWER_OF = {
    "ArrowLeft": "left",
    "1": "left",
    "ArrowRight": "right",
    "2": "right",
    "ArrowDown": "equal",
    "x": "incomparable",
    "s": "skip",
    "f": "flag",
}


def test_each_answer_by_keyboard(visit, desk):
    page = visit()
    keys = list(ANSWER_OF)
    leases = [press(page, key) for key in keys]
    wait_saved(page)
    assert [(given.lease, given.key, given.answer) for _, given, _ in desk.answers] == [
        (lease, key if key.startswith("A") else key.lower(), ANSWER_OF[key])
        for lease, key in zip(leases, keys, strict=True)
    ]
    assert len({given.event_id for _, given, _ in desk.answers}) == len(keys)
    assert all(0 <= given.view_ms < 60_000 and given.hidden_ms == 0 for _, given, _ in desk.answers)
    assert sum(given.view_ms for _, given, _ in desk.answers) > 0
    assert page.locator("#numbers").inner_text().count("of 200") == 1


def test_each_answer_by_mouse(visit, desk):
    page = visit()
    wanted = ["left", "right", "equal", "incomparable", "skip", "flag"]
    for answer in wanted:
        lease = lease_of(page)
        page.locator(f"[data-answer={answer}]").click()
        wait_for_pair(page, lease)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == wanted
    assert all(given.key is None for _, given, _ in desk.answers)
    page.keyboard.press(" ")  # pauses; the button that was clicked does not answer again
    page.wait_for_timeout(300)
    assert page.locator("#pair").get_attribute("data-playing") == "false"
    assert len(desk.answers) == 6


@pytest.mark.parametrize("key", ["ArrowLeft", "Enter"])
def test_a_held_key_answers_once(visit, desk, key):
    page = visit()
    page.locator("[data-answer=equal]").focus()  # what Enter presses
    page.keyboard.down(key)
    for _ in range(3):
        page.wait_for_timeout(UNSEEN_MS)
        page.keyboard.down(key)  # the browser's repetition
    page.keyboard.up(key)
    wait_saved(page)
    assert len(desk.answers) == 1


def test_presses_on_a_pair_that_nobody_can_have_seen_are_no_answers(visit, desk):
    page = visit()
    lease = lease_of(page)
    presses = """() => {
        for (const key of ["ArrowLeft", "ArrowRight", "ArrowLeft"]) dispatchEvent(new KeyboardEvent("keydown", { key }));
        document.querySelector("[data-answer=equal]").click();
    }"""
    page.evaluate(presses)
    expect(page.locator("#toast")).to_have_text("Too fast: that answer was ignored. This is a new pair.")
    second = wait_for_pair(page, lease)
    page.keyboard.press("ArrowRight")
    third = lease_of(page)
    page.keyboard.press("z")  # what was taken back was seen before: it may be answered at once
    page.wait_for_function("lease => document.querySelector('#pair').dataset.lease !== lease", arg=third)
    wait_until(lambda: desk.undone, page)
    page.wait_for_function("document.querySelector('#toast').textContent.startsWith('Undone')")
    page.keyboard.press("ArrowDown")
    wait_until(lambda: len(desk.answers) == 2, page)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "equal"]
    assert desk.answers[0][1].lease == lease
    assert second != lease


def test_the_next_pair_is_announced(visit):
    page = visit()
    said = page.locator("#next")
    assert said.get_attribute("aria-live") == "polite"
    expect(said).to_have_text("Pair 1. A or B?")
    press(page, "ArrowLeft")
    press(page, "s")
    expect(said).to_have_text("Pair 3. A or B?")
    page.keyboard.press("z")
    expect(said).to_have_text("Pair 2. A or B?")


def test_undo_shows_the_last_ones_again(visit, desk):
    page = visit()
    for _ in range(8):  # of more than the page still holds the films of
        press(page, "ArrowLeft")
    wait_saved(page)
    answered = [(given.event_id, pair) for _, given, pair in desk.answers]
    for k, (event, pair) in enumerate(reversed(answered[2:])):
        lease = lease_of(page)
        page.keyboard.press("Backspace" if k % 2 else "z")
        wait_until(lambda event=event: desk.undone[-1:] == [event], page)
        again = wait_for_pair(page, lease)
        assert desk.leases[again].pair == pair
    assert len(desk.answers) == 2
    press(page, "ArrowRight")  # the pair taken back last is answered anew
    wait_saved(page)
    assert (desk.answers[-1][1].answer, desk.answers[-1][2]) == ("right", answered[2][1])


def test_undo_reaches_behind_a_reload_and_says_where_it_ends(visit, desk):
    page = visit()
    press(page, "ArrowLeft")
    wait_saved(page)
    pair = desk.answers[0][2]
    page.reload()
    lease = wait_for_pair(page)
    page.keyboard.press("z")
    again = wait_for_pair(page, lease)
    assert desk.leases[again].pair == pair
    page.locator("[data-action=undo]").click()
    expect(page.locator("#toast")).to_have_text("Nothing to undo.")
    assert lease_of(page) == again


def test_unsaved_answers_outlive_a_reload(visit, desk):
    page = visit()
    desk.fail_answers = 10_000
    leases = [press(page, "ArrowLeft") for _ in range(3)]
    expect(page.locator("#saved")).to_have_text("Saving 3 …")
    expect(page.locator("#toast")).to_have_text("not saved; try again")
    page.reload()
    wait_for_pair(page)
    expect(page.locator("#saved")).to_have_text("Saving 3 …")
    assert not desk.answers
    desk.fail_answers = 0
    wait_saved(page)
    assert [given.lease for _, given, _ in desk.answers] == leases
    page.reload()
    wait_for_pair(page)
    page.wait_for_timeout(300)
    assert len(desk.answers) == 3


def test_offline_and_back_loses_and_doubles_nothing(visit, desk):
    page = visit()
    page.wait_for_timeout(500)  # three are fetched ahead
    first = press(page, "ArrowLeft")
    wait_saved(page)
    page.wait_for_timeout(500)
    page.context.set_offline(True)
    leases = [first, *[press(page, key) for key in ("ArrowRight", "ArrowDown", "x")]]
    leases.append(lease_of(page))
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


def test_a_proxy_that_cannot_reach_the_server_is_no_answer_of_the_server(visit, desk, site):
    page = visit(ready=False)
    wait_for_pair(page)
    page.wait_for_timeout(500)
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
        if path.startswith("/api/films/") and len(lost) < 3:  # one may be of the episode beside the pair
            lost.append(path)
            return silence
        return None

    site.proxy = first_are_lost
    page = visit(ready=False)
    wait_for_pair(page)  # after TIMEOUT_MS
    for _ in range(3):
        press(page, "ArrowLeft")
    wait_saved(page)
    assert len(lost) == 3
    assert sorted(pair for _, _, pair in desk.answers) == [0, 1, 2]


def test_undo_offline_takes_back_what_was_never_sent(visit, desk):
    page = visit()
    page.wait_for_timeout(500)
    page.context.set_offline(True)
    press(page, "ArrowLeft")
    lease = press(page, "ArrowLeft")
    page.keyboard.press("z")
    page.wait_for_function("lease => document.querySelector('#pair').dataset.lease === lease", arg=lease)
    page.keyboard.press("ArrowRight")
    page.context.set_offline(False)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "right"]
    assert desk.answers[1][1].lease == lease
    assert not desk.undone


def test_the_page_may_fall_silent_and_come_back(visit, desk, monkeypatch):
    """A server that answers slowly blocks nobody: the next pair does not wait for the last answer."""
    page = visit()
    page.wait_for_timeout(500)
    gate = threading.Event()
    answer = FakeDesk.answer

    async def slow(self: FakeDesk, annotator: str, given: Any) -> None:
        import asyncio

        while not gate.is_set():
            await asyncio.sleep(0.01)
        await answer(self, annotator, given)

    monkeypatch.setattr(FakeDesk, "answer", slow)
    for _ in range(3):
        press(page, "ArrowLeft")
    expect(page.locator("#saved")).to_have_text("Saving 3 …")
    assert not desk.answers
    gate.set()
    wait_saved(page)
    assert len(desk.answers) == 3


def test_time_on_a_hidden_page_does_not_count(visit, desk):
    page = visit()
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(600)
    page.evaluate(hide, False)
    press(page, "ArrowLeft")
    wait_saved(page)
    given = desk.answers[0][1]
    assert given.hidden_ms >= 500
    assert given.view_ms < given.hidden_ms + 5000


def test_keys_may_be_changed_and_switched_off(visit, desk):
    page = visit()
    page.keyboard.press("?")
    page.locator("[data-for=left]").click()
    page.keyboard.press("a")
    expect(page.locator("[data-for=left]")).to_have_text("a or ←")
    page.locator("[data-for=right]").click()
    page.keyboard.press("x")  # taken from "can't compare"
    expect(page.locator("[data-for=incomparable]")).to_have_text("none")
    page.locator("[data-for=equal]").click()
    page.keyboard.press("Escape")  # ends the asking, not the dialog
    expect(page.locator("[data-for=equal]")).to_have_text("↓")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    expect(page.locator("[data-answer=left] kbd")).to_have_text("a")
    page.reload()
    lease = wait_for_pair(page)
    page.keyboard.press("1")  # its other key before
    page.wait_for_timeout(200)
    assert lease_of(page) == lease
    for key in ("a", "x", "ArrowLeft", "ArrowRight"):  # whatever is changed, arrows answer
        press(page, key)
    wait_saved(page)
    assert [(given.answer, given.key) for _, given, _ in desk.answers] == [
        ("left", "a"), ("right", "x"), ("left", "ArrowLeft"), ("right", "ArrowRight")
    ]  # fmt: skip
    page.locator("[data-action=help]").click()
    page.locator("#keys-reset").click()
    page.locator("#keys-on").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("[data-answer=left] kbd")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)
    assert len(desk.answers) == 4
    page.locator("[data-action=help]").click()
    page.locator("#keys-on").check()
    page.keyboard.press("Escape")
    press(page, "ArrowLeft")


def test_when_there_is_nothing_the_page_says_why_and_goes_on_by_itself(visit, desk):
    desk.open.clear()
    page = visit(ready=False)
    expect(page.locator("#reason")).to_contain_text("the agent is recording new ones")
    page.keyboard.press("ArrowLeft")
    page.locator("[data-answer=left]").click(force=True)
    desk.open.append(3)
    wait_for_pair(page)
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: len(desk.answers) == 1, page)
    expect(page.locator("#pair")).to_have_attribute("data-state", "waiting")


def test_leases_are_renewed_and_given_back(visit, desk, monkeypatch):
    monkeypatch.setattr("tests.labelling.fake_desk.LEASE_S", 3.0)
    page = visit()
    page.wait_for_timeout(500)
    lease = lease_of(page)
    held = set(desk.leases)
    assert len(held) == 4
    wait_until(lambda: desk.renewed.count(lease) >= 3, page)
    page.goto("about:blank")
    wait_until(lambda: set(desk.released) == held, page)
    assert not desk.leases


def test_a_desk_that_has_forgotten_everything_is_asked_anew(visit, desk):
    page = visit()
    page.wait_for_timeout(500)
    desk.known.clear()
    for _ in range(6):  # those that are here already, and further ones
        press(page, "ArrowLeft")
    wait_saved(page)
    assert len(desk.answers) == 6


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


def test_without_a_link_the_page_asks_for_one(visit, site, browser):
    page = browser.new_context().new_page()
    page.goto(site.url)
    expect(page.locator("#entrance")).to_be_visible()
    page.locator("#entrance-link").fill("wrong")
    page.locator("#entrance-form button").click()
    expect(page.locator("#entrance-why")).to_contain_text("invalid, expired or revoked")
    page.locator("#entrance-link").fill(site.link("grace"))
    page.locator("#entrance-form button").click()
    wait_for_pair(page)
    expect(page.locator("#name")).to_have_text("grace")
    page.goto(site.link("ada"))  # another's link in the same browser
    expect(page.locator("#name")).to_have_text("ada")
    assert "token" not in page.url
    wait_for_pair(page)
    page.locator("#leave").click()
    expect(page.locator("#entrance")).to_be_visible()
    assert page.context.cookies() == []
    page.context.close()


def test_a_page_of_another_site_can_do_nothing(visit, site, desk):
    """A hostile page at another port of this machine, which browsers call the same site: its requests carry the cookie."""
    page = visit()
    lease, film = lease_of(page), next(iter(desk.sheets))
    hostile = "http://127.0.0.1:9/"
    page.context.route(hostile, lambda route: route.fulfill(content_type="text/html", body="<h1>Win a prize</h1>"))
    page.goto(hostile)
    page.context.unroute(hostile)
    outcomes = page.evaluate(
        """async ([url, lease, film]) => {
            const body = JSON.stringify({ event_id: "0".repeat(32), lease, answer: "left" });
            const send = (init) => fetch(url + "/api/answers", { method: "POST", credentials: "include", body, ...init })
                .then((reply) => reply.type, () => "failed");
            const picture = new Image();
            const shown = new Promise((done) => (picture.onload = () => done("shown"), picture.onerror = () => done("failed")));
            picture.src = url + "/api/films/" + film;
            return [
                await send({ headers: { "content-type": "application/json" } }),
                await send({ headers: { "content-type": "text/plain" }, mode: "no-cors" }), // arrives, and is refused there
                await fetch(url + "/api/me", { credentials: "include" }).then(() => "read", () => "failed"),
                await shown,
            ];
        }""",
        [site.url, lease, film],
    )
    assert outcomes == ["failed"] * 4
    assert not desk.answers


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


@pytest.mark.parametrize("background", [False, True])
def test_a_page_says_that_labelling_is_over_also_when_the_server_has_gone(visit, desk, background):
    page = visit()
    hide(page, background)
    desk.ended = True
    wait_until(lambda: desk.heard_the_end, page)
    expect(page.locator("#reason")).to_have_text("Done. Thank you! You can close this page.")
    expect(page.locator("#pair")).to_have_attribute("data-state", "waiting")  # the pair on screen is wanted no more
    page.context.set_offline(True)
    hide(page, False)
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(2500)  # asks again meanwhile, in vain
    expect(page.locator("#reason")).to_have_text("Done. Thank you! You can close this page.")
    assert page.title().startswith("✓")
    assert not desk.answers
    page.context.set_offline(False)
    desk.ended = False  # an answer was taken back
    wait_for_pair(page)
    assert not page.title().startswith("✓")


def test_a_page_that_closes_says_so(visit, desk):
    page = visit()
    asked = page.evaluate("import('/static/questions.js').then(({ PAGE }) => PAGE)")
    page.goto("about:blank")
    wait_until(lambda: desk.closed == [asked], page)
