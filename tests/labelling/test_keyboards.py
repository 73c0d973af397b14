"""Keys of other keyboards: what a key types counts, and where it types no Latin letter, its place."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.labelling.at_the_page import answer, press, wait_saved

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
