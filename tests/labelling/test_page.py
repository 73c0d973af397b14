"""Whole sessions at the labelling page, in a real browser."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.labelling.fake_desk import FakeDesk, Served, served

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
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


def wait_for_pair(page: Page, besides: str = "") -> str:
    """The lease of the pair on screen, once it is another than `besides`."""
    page.wait_for_function(
        "besides => { const { state, lease } = document.querySelector('#pair').dataset; return state === 'asking' && lease !== besides }",
        arg=besides,
    )
    return lease_of(page)


def lease_of(page: Page) -> str:
    return str(page.evaluate("document.querySelector('#pair').dataset.lease"))


def wait_until(true: Callable[[], Any], page: Page, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(50)


def wait_saved(page: Page) -> None:
    expect(page.locator("#saved")).to_have_attribute("data-waiting", "0", timeout=30_000)
    expect(page.locator("#saved")).to_have_text("All saved")


def press(page: Page, key: str) -> str:
    """Press a key that answers; returns the lease it answered."""
    lease = lease_of(page)
    page.keyboard.press(key)
    wait_for_pair(page, lease)
    return lease


def frames(page: Page) -> list[int]:
    return [int(page.locator(f"#{side}").get_attribute("data-frame") or -1) for side in ("left", "right")]


def test_fifty_pairs_by_keyboard(visit, desk):
    page = visit()
    keys = [list(ANSWER_OF)[k % len(ANSWER_OF)] for k in range(50)]
    leases = [press(page, key) for key in keys]
    wait_saved(page)
    assert [(given.lease, given.key, given.answer) for _, given, _ in desk.answers] == [
        (lease, key if key.startswith("A") else key.lower(), ANSWER_OF[key]) for lease, key in zip(leases, keys, strict=True)
    ]
    assert len({given.event_id for _, given, _ in desk.answers}) == 50
    assert all(0 <= given.view_ms < 60_000 and given.hidden_ms == 0 for _, given, _ in desk.answers)
    assert sum(given.view_ms for _, given, _ in desk.answers) > 0
    assert page.locator("#numbers").inner_text().count("of 200") == 1


def test_fifty_pairs_by_mouse(visit, desk):
    page = visit()
    wanted = [("left", "right", "equal", "incomparable", "skip", "flag")[k % 6] for k in range(50)]
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
    assert len(desk.answers) == 50


def test_a_held_key_answers_once(visit, desk):
    page = visit()
    page.keyboard.down("ArrowLeft")
    for _ in range(5):
        page.keyboard.down("ArrowLeft")  # the browser's repetition
    page.keyboard.up("ArrowLeft")
    wait_saved(page)
    page.wait_for_timeout(300)
    assert len(desk.answers) == 1


def test_undo_shows_the_last_ten_again(visit, desk):
    page = visit()
    for _ in range(12):
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
    expect(page.locator("#toast")).to_have_text("There is nothing to undo.")
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
    expect(page.locator("#saved")).to_have_text("Offline, 4 kept here")
    assert len(desk.answers) == 1
    page.context.set_offline(False)
    wait_saved(page)
    wait_for_pair(page)
    press(page, "ArrowRight")
    wait_saved(page)
    assert [given.lease for _, given, _ in desk.answers][:5] == leases
    assert len({given.event_id for _, given, _ in desk.answers}) == len(desk.answers) == 6


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


def test_two_annotators_never_hold_one_pair(visit, desk):
    ada, grace = visit("ada"), visit("grace")
    for k in range(15):
        press(ada, "ArrowLeft")
        press(grace, ("ArrowRight", "ArrowDown", "x")[k % 3])
    wait_saved(ada)
    wait_saved(grace)
    assert desk.doubled == 0
    pairs = [pair for _, _, pair in desk.answers]
    assert len(pairs) == len(set(pairs)) == 30
    assert {given.answer for name, given, _ in desk.answers if name == "ada"} == {"left"}
    assert {given.answer for name, given, _ in desk.answers if name == "grace"} == {"right", "equal", "incomparable"}


def swipe(page: Page, start: tuple[float, float], by: tuple[float, float]) -> None:
    touch = page.context.new_cdp_session(page)
    x, y = start
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for k in range(1, 6):
        point = {"x": x + by[0] * k / 5, "y": y + by[1] * k / 5}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_a_phone_needs_no_keyboard(visit, desk):
    page = visit(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = {side: page.locator(f"#{side}").bounding_box() for side in ("left", "right")}
    assert boxes["right"]["y"] >= boxes["left"]["y"] + boxes["left"]["height"]  # stacked
    assert boxes["left"]["width"] == boxes["right"]["width"]
    for button in page.locator("button:visible, a:visible").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 44, button.evaluate("element => element.outerHTML")
    for answer in ("left", "right", "equal", "incomparable", "skip", "flag"):  # all in reach of a thumb, without scrolling
        box = page.locator(f"[data-answer={answer}]").bounding_box()
        assert box["y"] + box["height"] <= 740
    for by, answer in (((-140, 5), "left"), ((140, -5), "right")):
        lease = lease_of(page)
        swipe(page, (180, 200), by)
        wait_for_pair(page, lease)
        wait_until(lambda answer=answer: desk.answers and desk.answers[-1][1].answer == answer, page)
    lease = lease_of(page)
    for by in ((30, 0), (60, 120)):  # too short; rather a scroll
        swipe(page, (180, 250), by)
    page.evaluate("scrollTo(0, 0)")
    page.touchscreen.tap(180, 200)
    expect(page.locator("#pair")).to_have_attribute("data-playing", "false")
    assert lease_of(page) == lease
    page.locator("[data-answer=equal]").tap()
    wait_for_pair(page, lease)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "right", "equal"]


def test_less_motion_starts_paused(visit, desk):
    page = visit(reduced_motion="reduce")
    page.wait_for_timeout(400)
    assert frames(page) == [0, 0]
    expect(page.locator("#hint")).to_be_visible()
    expect(page.locator("#episode-canvas")).to_have_attribute("data-frame", "0")
    expect(page.locator("[aria-label='Play the episode']")).to_be_visible()
    press(page, "ArrowLeft")
    page.wait_for_timeout(300)
    assert frames(page) == [0, 0]
    page.keyboard.press(" ")
    wait_until(lambda: frames(page)[0] > 2, page)
    expect(page.locator("#hint")).to_be_hidden()


def pixels(page: Page, side: str) -> np.ndarray:
    """``[height, width, 3]``: what the canvas holds."""
    got = page.evaluate(
        """side => {
            const canvas = document.getElementById(side);
            const { width, height, data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return { width, height, data: Array.from(data) };
        }""",
        side,
    )
    return np.array(got["data"], np.uint8).reshape(got["height"], got["width"], 4)[..., :3]


def test_every_frame_is_exact_and_both_clips_are_on_it(visit, desk):
    page = visit()
    page.keyboard.press(" ")
    page.keyboard.press("r")
    showing = desk.leases[lease_of(page)].showing
    for k in range(showing.left.frames):
        for side, film in (("left", showing.left), ("right", showing.right)):
            wanted = desk.arrays[film.id][min(k, film.frames - 1)]  # the shorter one holds its last frame
            np.testing.assert_array_equal(pixels(page, side), wanted, err_msg=f"frame {k} on the {side}")
        assert page.locator("#frame").inner_text() == f"{k + 1} / {showing.left.frames}"
        page.keyboard.press(".")
    assert frames(page) == [0, 0]
    page.keyboard.press(",")
    assert frames(page) == [showing.left.frames - 1, showing.right.frames - 1]
    assert showing.left.frames != showing.right.frames
    page.locator("#scrub").fill("7")
    assert frames(page) == [7, 7]


def test_image_observations_grow_by_whole_pixels(visit):
    for options in ({"viewport": {"width": 1234, "height": 777}}, {"device_scale_factor": 1.25}, PHONE):
        page = visit(**options)
        for side in ("left", "right"):
            scale, ratio, rendering = page.locator(f"#{side}").evaluate(
                "c => [c.getBoundingClientRect().width * devicePixelRatio / c.width, c.clientWidth / c.clientHeight, getComputedStyle(c).imageRendering]"
            )
            assert scale >= 2
            assert scale == pytest.approx(round(scale), abs=1e-3)
            assert ratio == pytest.approx(1, abs=0.02)
            assert rendering == "pixelated"


def test_clips_loop_on_one_clock_and_loops_are_counted(visit, desk):
    page = visit()
    page.keyboard.press("]")  # 1.5
    page.keyboard.press("]")  # 2: 24 frames at 15 a second take 0.8 s, and the last stays 0.3 s
    expect(page.locator("#speed")).to_have_text("2×")
    seen = page.evaluate(
        """async () => {
            const seen = [];
            const until = performance.now() + 2500;
            while (performance.now() < until) {
                await new Promise(requestAnimationFrame);
                seen.push([+document.getElementById("left").dataset.frame, +document.getElementById("right").dataset.frame]);
            }
            return seen;
        }"""
    )
    film = desk.leases[lease_of(page)].showing.right
    assert all(right == min(left, film.frames - 1) for left, right in seen)
    assert max(left for left, _ in seen) == 23
    assert any(after[0] < before[0] for before, after in zip(seen, seen[1:], strict=False))
    press(page, "ArrowLeft")
    press(page, "ArrowLeft")
    wait_saved(page)
    first, second = (given for _, given, _ in desk.answers)
    assert 1 <= first.loops_left <= 4
    assert 1 <= first.loops_right <= 4
    assert first.view_ms >= 2000
    assert (second.loops_left, second.loops_right) == (0, 0)


def test_time_on_a_hidden_page_does_not_count(visit, desk):
    page = visit()
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(1200)
    page.evaluate(hide, False)
    press(page, "ArrowLeft")
    wait_saved(page)
    given = desk.answers[0][1]
    assert given.hidden_ms >= 1100
    assert given.view_ms < given.hidden_ms + 5000


def test_speed_has_ends_and_warns_of_flicker_once(visit):
    page = visit()
    for _ in range(9):
        page.keyboard.press("[")
    expect(page.locator("#speed")).to_have_text("0.25×")
    expect(page.locator("#toast")).to_be_hidden()
    for _ in range(12):
        page.keyboard.press("]")
    expect(page.locator("#speed")).to_have_text("4×")
    expect(page.locator("#toast")).to_contain_text("flicker")
    page.reload()
    wait_for_pair(page)
    page.keyboard.press("]")
    page.wait_for_timeout(200)
    expect(page.locator("#toast")).to_be_hidden()


def test_keys_may_be_changed_and_switched_off(visit, desk):
    page = visit()
    page.keyboard.press("?")
    page.locator("[data-for=left]").click()
    page.keyboard.press("a")
    expect(page.locator("[data-for=left]")).to_have_text("a")
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
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    assert lease_of(page) == lease
    press(page, "a")
    press(page, "x")
    wait_saved(page)
    assert [(given.answer, given.key) for _, given, _ in desk.answers] == [("left", "a"), ("right", "x")]
    page.locator("[data-action=help]").click()
    page.locator("#keys-reset").click()
    page.locator("#keys-on").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("[data-answer=left] kbd")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)
    assert len(desk.answers) == 2
    page.locator("[data-action=help]").click()
    page.locator("#keys-on").check()
    page.keyboard.press("Escape")
    press(page, "ArrowLeft")


def test_everything_is_reached_with_tab_alone(visit, desk):
    page = visit()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        where = page.evaluate("({ answer, action } = document.activeElement.dataset, answer ?? action ?? document.activeElement.id)")
        reached.add(where)
    assert reached >= {"left", "right", "equal", "incomparable", "skip", "flag", "undo", "pause", "restart", "help", "scrub", "episode-play"}
    page.locator("[data-answer=equal]").focus()
    lease = lease_of(page)
    page.keyboard.press(" ")  # presses the button that has the focus, and does not pause
    wait_for_pair(page, lease)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["equal"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/statistics"])
def test_accessibility(visit, scheme, path):
    from axe_playwright_python.sync_playwright import Axe

    for options in ({}, PHONE):
        page = visit(color_scheme=scheme, path=path if path != "/" else None, **options)
        page.wait_for_selector("#people td" if path == "/statistics" else "#episode:not([hidden])")
        for state in ("page", "help") if path == "/" else ("page",):
            if state == "help":
                page.locator("[data-action=help]").click()
            found = Axe().run(page).response["violations"]
            bad = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found if one["impact"] in ("serious", "critical")]
            assert not bad


def test_the_next_pair_is_there_within_50_ms(visit):
    page = visit()
    page.wait_for_timeout(500)
    page.evaluate(
        """() => {
            window.waits = [];
            addEventListener("keydown", (event) => {
                // The first frame after the one in which the pair was drawn: what was drawn is on screen by then.
                requestAnimationFrame(() => window.waits.push(performance.now() - event.timeStamp));
            });
        }"""
    )
    for _ in range(20):
        press(page, "ArrowLeft")
        page.wait_for_timeout(250)
    waits = page.evaluate("window.waits")
    assert len(waits) == 20
    assert sorted(waits)[10] < 50, waits


def test_when_there_is_nothing_the_page_says_why_and_goes_on_by_itself(visit, desk):
    desk.open.clear()
    page = visit(ready=False)
    expect(page.locator("#reason")).to_contain_text("the agent is recording new ones")
    page.keyboard.press("ArrowLeft")
    page.locator("[data-answer=left]").click()
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
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # instead of the first 20 s
    wait_until(lambda: desk.renewed.count(lease) >= 3, page)
    page.goto("about:blank")
    wait_until(lambda: set(desk.released) == held, page)
    assert not desk.leases


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
    assert desk.released


def test_without_a_link_the_page_asks_for_one(visit, site, browser):
    page = browser.new_context().new_page()
    page.goto(site.url)
    expect(page.locator("#entrance")).to_be_visible()
    page.locator("#entrance-link").fill("wrong")
    page.locator("#entrance-form button").click()
    expect(page.locator("#entrance-why")).to_contain_text("not known here")
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


def test_instructions_are_text(visit):
    page = visit()
    expect(page.locator("#instructions")).to_contain_text("<b>Colour does not matter.</b>")
    assert page.locator("#instructions b").count() == 0


def test_the_agent_plays_beside_the_clips(visit):
    page = visit()
    expect(page.locator("#episode-text")).to_have_text("After 12,288 environment steps, 90 steps long.")
    canvas = page.locator("#episode-canvas")
    before = canvas.get_attribute("data-frame")
    wait_until(lambda: canvas.get_attribute("data-frame") != before, page)
    page.locator("#episode-play").click()
    page.wait_for_timeout(100)
    still = canvas.get_attribute("data-frame")
    page.wait_for_timeout(400)
    assert canvas.get_attribute("data-frame") == still


def test_statistics_and_the_owners_weights(visit, desk):
    page = visit("ada", "/statistics")
    row = page.locator("#people tr", has_text="hurried")
    expect(row).to_contain_text("81 %")
    weight = page.locator("[data-name=hurried]")
    weight.fill("0.25")
    weight.press("Enter")
    expect(page.locator("#toast")).to_have_text("hurried's labels now count 0.25.")
    assert desk.weights == {"hurried": 0.25}
    weight.fill("3")
    weight.press("Enter")
    expect(page.locator("#toast")).to_contain_text("between 0")
    assert desk.weights == {"hurried": 0.25}
    other = visit("grace", "/statistics")
    expect(other.locator("#people tr")).to_have_count(4)
    assert other.locator("#people input").count() == 0


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
    assert outcomes == ["failed", "opaque", "failed", "failed"]
    assert not desk.answers
