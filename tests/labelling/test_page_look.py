"""What the pages look like in a real browser: exact frames, phones, less motion; and the keys of other keyboards."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from rlhf_ray.data.answers import ANSWERS
from tests.labelling.at_the_page import (
    PHONE,
    answer,
    covered,
    frames,
    lease_of,
    pixels,
    press,
    swipe,
    wait_for_pair,
    wait_saved,
    wait_until,
)


@pytest.mark.slow
def test_a_phone_needs_no_keyboard(visit, desk):
    page = visit(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = {side: page.locator(f"#{side}").bounding_box() for side in ("left", "right")}
    assert boxes["right"]["y"] >= boxes["left"]["y"] + boxes["left"]["height"]  # stacked
    assert boxes["left"]["width"] == boxes["right"]["width"]
    assert_whole_pixels(page)
    for button in page.locator("button:visible, a:visible").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 44, button.evaluate("element => element.outerHTML")
    for name in ANSWERS:  # all in reach of a thumb, without scrolling
        box = page.locator(f"[data-answer={name}]").bounding_box()
        assert box["y"] + box["height"] <= 740
    for by, name in (((-140, 5), "left"), ((140, -5), "right")):
        answer(page, lambda by=by: swipe(page, (180, 200), by))
        wait_until(lambda name=name: desk.answers and desk.answers[-1][1].answer == name, page)
    lease = lease_of(page)
    for by in ((30, 0), (60, 120)):  # too short; rather a scroll
        swipe(page, (180, 250), by)
    page.evaluate("scrollTo(0, 0)")
    page.touchscreen.tap(180, 200)
    expect(page.locator("#pair")).to_have_attribute("data-playing", "false")
    assert lease_of(page) == lease
    answer(page, page.locator("[data-answer=equal]").tap)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "right", "equal"]


@pytest.mark.slow
def test_less_motion_starts_paused(visit, desk):
    page = visit(reduced_motion="reduce")
    page.wait_for_timeout(400)
    assert frames(page) == [0, 0]
    expect(page.locator("#toast")).to_contain_text("Clips are paused")
    assert covered(page, "#toast", ".panes, [data-answer], [data-action=undo]") == []
    page.reload()  # said once, and not before each pair
    wait_for_pair(page)
    expect(page.locator("#toast")).to_be_hidden()
    expect(page.locator("#episode-canvas")).to_have_attribute("data-frame", "0")
    expect(page.locator("[aria-label='Play the episode']")).to_be_visible()
    press(page, "ArrowLeft")
    page.wait_for_timeout(300)
    assert frames(page) == [0, 0]
    page.keyboard.press(" ")
    wait_until(lambda: frames(page)[0] > 2, page)


def test_every_frame_is_exact_and_both_clips_are_on_it(visit, desk):
    page = visit()
    page.keyboard.press(" ")
    page.keyboard.press("r")
    question = desk.leases[lease_of(page)].question
    for k in range(question.left.frames):
        for (side, shown), film in zip(pixels(page).items(), (question.left, question.right), strict=True):
            wanted = desk.arrays[film.id][min(k, film.frames - 1)]  # the shorter one holds its last frame
            np.testing.assert_array_equal(shown, wanted, err_msg=f"frame {k} on the {side}")
        assert page.locator("#frame").inner_text() == f"{k + 1} / {question.left.frames}"
        page.keyboard.press(".")
    assert frames(page) == [0, 0]
    page.keyboard.press(",")
    assert frames(page) == [question.left.frames - 1, question.right.frames - 1]
    assert question.left.frames != question.right.frames
    page.locator("#scrub").fill("7")
    assert frames(page) == [7, 7]


def assert_whole_pixels(page):
    for side in ("left", "right"):
        scale, ratio, rendering = page.locator(f"#{side}").evaluate(
            """canvas => {
                const { width, height } = canvas.getBoundingClientRect();
                return [width * devicePixelRatio / canvas.width, width / height, getComputedStyle(canvas).imageRendering];
            }"""
        )
        assert scale >= 2
        assert scale == pytest.approx(round(scale), abs=1e-3)
        assert ratio == pytest.approx(1, abs=0.02)
        assert rendering == "pixelated"


def test_image_observations_grow_by_whole_pixels(visit):
    assert_whole_pixels(visit(device_scale_factor=1.25))


@pytest.mark.slow
def test_clips_loop_on_one_clock_and_loops_are_counted(visit, desk):
    page = visit()
    page.keyboard.press("]")  # 1.5
    page.keyboard.press("]")  # 2: 24 frames at 15 a second take 0.8 s, and the last stays 0.3 s
    expect(page.locator("#speed")).to_have_text("2×")
    seen = page.evaluate(
        """async () => {
            const seen = [];
            const until = performance.now() + 20000;
            for (let rounds = 0; rounds < 2 && performance.now() < until; ) {
                await new Promise(requestAnimationFrame);
                seen.push([+document.getElementById("left").dataset.frame, +document.getElementById("right").dataset.frame]);
                rounds += seen.length > 1 && seen.at(-1)[0] < seen.at(-2)[0];
            }
            return seen;
        }"""
    )
    question = desk.leases[lease_of(page)].question
    assert all(right == min(left, question.right.frames - 1) for left, right in seen)
    assert max(left for left, _ in seen) == 23
    assert sum(after[0] < before[0] for before, after in pairwise(seen)) == 2
    press(page, "ArrowLeft")
    press(page, "ArrowLeft")
    wait_saved(page)
    first, second = (given for _, given, _ in desk.answers)
    assert first.view_ms >= 2000
    assert min(first.loops_left, first.loops_right) >= 2
    for given in (first, second):  # of each pair anew: no more than fit into the time that it was seen
        for loops in (given.loops_left, given.loops_right):
            assert loops <= max(
                0, 1 + (given.view_ms / 1000 - min(question.left.frames, question.right.frames) / 30) / 1.1
            )


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


def test_everything_is_reached_with_tab_alone(visit, desk):
    page = visit()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "({ answer, action } = document.activeElement.dataset, answer ?? action ?? document.activeElement.id)"
        )
        reached.add(where)
    assert reached >= {*ANSWERS, "undo", "pause", "restart", "help", "scrub", "episode-play"}
    page.locator("[data-answer=equal]").focus()
    press(page, " ")  # presses the button that has the focus, and does not pause
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["equal"]


def assert_accessible(page):
    from axe_playwright_python.sync_playwright import Axe

    assert not [
        (one["id"], [node["html"] for node in one["nodes"]])
        for one in Axe().run(page).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "screen"), [("light", {}), ("dark", PHONE)])
def test_accessibility(visit, site, desk, scheme, screen):
    page = visit(color_scheme=scheme, **screen)
    page.wait_for_selector("#episode:not([hidden])")
    assert_accessible(page)
    page.locator("[data-action=help]").click()
    assert_accessible(page)
    page.goto(f"{site.url}/statistics")
    page.wait_for_selector("#people td")
    assert_accessible(page)
    desk.open.clear()
    page.goto(site.url)
    page.wait_for_selector("#episode:not([hidden])")
    page.wait_for_selector("#pair[data-state=waiting]")
    assert_accessible(page)


def test_instructions_are_text(visit):
    page = visit()
    expect(page.locator("#instructions")).to_contain_text("<b>Colour does not matter.</b>")
    assert page.locator("#instructions b").count() == 0


def test_the_agent_plays_beside_the_clips(visit, desk):
    desk.episode_ended = False
    page = visit()
    expect(page.locator("#episode-text")).to_contain_text("; its first 90 steps.")
    desk.episode_ended = True
    page.reload()
    expect(page.locator("#episode-text")).to_have_text("Filmed after 12,288 environment steps; 90 steps long.")
    canvas = page.locator("#episode-canvas")
    before = canvas.get_attribute("data-frame")
    wait_until(lambda: canvas.get_attribute("data-frame") != before, page)
    page.locator("#episode-play").click()
    page.wait_for_timeout(100)
    still = canvas.get_attribute("data-frame")
    page.wait_for_timeout(400)
    assert canvas.get_attribute("data-frame") == still


@pytest.mark.slow
def test_statistics_and_the_owners_weights(visit, desk):
    page = visit("ada", "/statistics")
    row = page.locator("#people tr", has_text="hurried")
    expect(row).to_contain_text("81 %")
    expect(row.locator("[data-title='Check accuracy']")).to_have_text("55 % (9)")
    expect(row.locator("[data-title='A chosen']")).to_have_class("odd")
    expect(row.locator("[data-title='Wrong answers']")).to_have_text("47 % (36–58 %)")
    expect(row.locator("[data-title='Wrong answers']")).to_have_class("odd")
    expect(page.locator("#figures")).to_contain_text("good enough for tentative conclusions")
    expect(page.locator("#figures")).to_contain_text("40 shared pairs; by chance 52 %")
    weight = page.locator("[data-name=hurried]")
    weight.fill("0.25")
    weight.press("Enter")
    expect(page.locator("#toast")).to_have_text("hurried's labels now have weight 0.25.")
    assert desk.weights == {"hurried": 0.25}
    weight.fill("3")
    weight.press("Enter")
    expect(page.locator("#toast")).to_contain_text("between 0")
    assert desk.weights == {"hurried": 0.25}
    other = visit("grace", "/statistics")
    expect(other.locator("#people tr")).to_have_count(1)  # their own
    expect(other.locator("#figures")).not_to_contain_text("Krippendorff")
    assert other.locator("#people input").count() == 0


SHIFT, CTRL, ALT = 8, 2, 1
"""Chromium's modifiers."""
MEANS = {
    # layout and key: (what it types, its place, modifiers), what it means
    "US !": (("!", "Digit1", SHIFT), None),
    "AZERTY 1": (("&", "Digit1", 0), "left"),
    "AZERTY 2 with Shift": (("2", "Digit2", SHIFT), "right"),
    "AZERTY z": (("z", "KeyW", 0), "undo"),
    "AZERTY dead ^": (("Dead", "BracketLeft", 0), "slower"),
    "Czech 1": (("+", "Digit1", 0), "left"),
    "QWERTZ z": (("z", "KeyY", 0), "undo"),
    "German [ on Linux": (("[", "Digit8", 0), "slower"),
    "German ] on Windows": (("]", "Digit9", CTRL | ALT), "faster"),
    "German ü": (("ü", "BracketLeft", 0), "slower"),
    "Turkish-F q": (("q", "BracketLeft", 0), None),
    "Dvorak s": (("s", "Semicolon", 0), "skip"),
    "Russian ч": (("ч", "KeyX", 0), "incomparable"),
    "Russian Ы": (("Ы", "KeyS", SHIFT), "skip"),
    "Arabic ١": (("١", "Digit1", 0), "left"),
    "Persian numpad ۲": (("۲", "Numpad2", 0), "right"),
    "numpad 4 without NumLock": (("ArrowLeft", "Numpad4", 0), "left"),
    "numpad 1 without NumLock": (("End", "Numpad1", 0), None),
    "Japanese full-width ｘ": (("ｘ", "KeyX", 0), "incomparable"),
    "an input method": (("Process", "KeyR", 0), "restart"),
    "Caps Lock F": (("F", "KeyF", 0), "flag"),
    "Alt and f, a menu": (("f", "KeyF", ALT), None),
    "Alt and ←, back": (("ArrowLeft", "ArrowLeft", ALT), None),
    "Ctrl and r, reload": (("r", "KeyR", CTRL), None),
    "Ctrl and ч, cut": (("ч", "KeyX", CTRL), None),
    "Option and s on a Mac": (("ß", "KeyS", ALT), None),
}


def test_what_the_keys_of_other_keyboards_mean(visit):
    """Of the page's own code, as fast as it goes: an answer each would take a pair each."""
    page = visit()
    presses = [press for press, _ in MEANS.values()]
    meant = page.evaluate(
        """async (presses) => {
            const { namesOf } = await import("/static/keyboard.js");
            const { ACTIONS } = await import("/static/keys.js");
            return presses.map(([key, code, modifiers]) => {
                const held = { altKey: !!(modifiers & 1), ctrlKey: !!(modifiers & 2), shiftKey: !!(modifiers & 8) };
                const names = namesOf(new KeyboardEvent("keydown", { key, code, ...held }));
                const found = names.map((name) => Object.keys(ACTIONS).find((action) => ACTIONS[action].keys.includes(name)));
                return found.find(Boolean) ?? null;
            });
        }""",
        presses,
    )
    assert dict(zip(MEANS, meant, strict=True)) == {layout: means for layout, (_, means) in MEANS.items()}
    altgr = """async () => (await import("/static/keyboard.js")).namesOf(
        new KeyboardEvent("keydown", { key: "[", code: "Digit8", modifierAltGraph: true }))"""
    assert page.evaluate(altgr) == ["["]


@pytest.fixture
def typing(visit: Any) -> Any:
    page = visit()
    keyboard = page.context.new_cdp_session(page)

    def press(key: str, code: str, modifiers: int = 0) -> None:
        text = {"text": key} if len(key) == 1 else {}
        keyboard.send(
            "Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "code": code, "modifiers": modifiers, **text}
        )
        keyboard.send("Input.dispatchKeyEvent", {"type": "keyUp", "key": key, "code": code, "modifiers": modifiers})

    page.type_key = press
    return page


def test_answers_from_other_keyboards(typing, desk):
    page = typing
    for key, code in (("ы", "KeyS"), ("&", "Digit1"), ("Process", "KeyX"), ("ｆ", "KeyF")):
        answer(page, lambda key=key, code=code: page.type_key(key, code))
    page.type_key("Dead", "BracketLeft")
    expect(page.locator("#speed")).to_have_text("0.75×")
    page.type_key("]", "Digit9", CTRL | ALT)
    expect(page.locator("#speed")).to_have_text("1×")
    wait_saved(page)
    assert [(given.answer, given.key) for _, given, _ in desk.answers] == [
        ("skip", "ы"), ("left", "&"), ("incomparable", "x"), ("flag", "f")
    ]  # fmt: skip


def test_keys_of_another_keyboard_can_be_chosen(typing, desk):
    page = typing
    page.type_key("?", "Digit7", SHIFT)
    page.locator("[data-for=right]").click()
    page.type_key("AltGraph", "AltRight")  # alone it is no key to choose
    expect(page.locator("[data-for=right]")).to_have_text("press a key …")
    page.type_key("ж", "Semicolon")
    expect(page.locator("[data-for=right]")).to_have_text("ж or →")
    page.keyboard.press("Escape")
    answer(page, lambda: page.type_key("Ж", "Semicolon", SHIFT))
    press(page, "ArrowRight")
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["right", "right"]
