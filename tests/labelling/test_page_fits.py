"""Whether everything fits, in a real browser: small and large screens, long numbers, long instructions, and what lies over what."""

import pytest
from playwright.sync_api import Page, expect

from rlhf_ray import tune_configs
from tests.labelling.at_the_page import covered, wait_for_pair
from tests.labelling.fake_desk import FakeDesk

PHONES = ((320, 568), (360, 740))
ON_ITS_SIDE = ((844, 390), (667, 375))
SCREENS = (*PHONES, *ON_ITS_SIDE, (768, 1024), (1280, 720), (1280, 800), (2560, 1440))
COINRUN = {"labels": 1_234, "wanted": 2_000, "own": 1_234, "env_steps": 12_345_678, "total_env_steps": 25_000_000}
HOPPER = {"labels": 699, "wanted": 700, "env_steps": 999_999, "total_env_steps": 1_000_000}


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk(size=64, told=COINRUN)


def size(page: Page, screen: tuple[int, int]) -> None:
    page.set_viewport_size({"width": screen[0], "height": screen[1]})
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def wide(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


@pytest.mark.slow
def test_long_numbers_push_nothing_sideways(visit, desk):
    page = visit()
    page.wait_for_selector("#episode:not([hidden])")
    expect(page.locator("#numbers")).to_contain_text("12.3 M of 25 M")
    for screen in SCREENS:
        size(page, screen)
        assert wide(page) <= screen[0], screen
    desk.told = HOPPER
    page.reload()
    expect(page.locator("#numbers")).to_contain_text("999.9 k of 1 M")  # not rounded up: it is not the end
    for screen in ((320, 568), (1280, 720)):
        size(page, screen)
        assert wide(page) <= screen[0], screen


@pytest.mark.slow
def test_instructions_clips_and_answers_are_in_sight_together(visit, desk):
    desk.told = {"first_labels": 40}
    page = visit()
    expect(page.locator("#begins")).to_have_text("Training starts after 40 labels (0 so far).")
    texts = [tune_configs.load(name).experiment.labelling.instructions for name in tune_configs.names()]
    page.evaluate("text => (document.getElementById('instructions').textContent = text)", max(texts, key=len))
    for screen in (*PHONES, *ON_ITS_SIDE, (1280, 720)):
        size(page, screen)
        lowest = page.evaluate(
            """Math.max(...[...document.querySelectorAll("#instructions, #begins, #left, #right, .answers button")].map(
                (element) => element.getBoundingClientRect().bottom))"""
        )
        assert lowest <= screen[1], screen
        assert covered(page, ".answers", "#left, #right, #instructions, .player button") == []
        if screen in ON_ITS_SIDE:
            assert page.locator(".stage").first.bounding_box()["height"] >= 0.45 * screen[1]
        if screen != (320, 568):
            expect(page.locator("#more")).to_be_hidden()  # nothing of them is cut off
    desk.told = {"first_labels": None}
    page.reload()
    wait_for_pair(page)
    expect(page.locator("#begins")).to_be_hidden()


def test_long_instructions_are_cut_off_until_they_are_asked_for(visit):
    page = visit(viewport={"width": 360, "height": 740})
    page.evaluate(
        "document.getElementById('instructions').textContent = 'Prefer the calmer clip, and say why. '.repeat(12)"
    )
    whole = "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight + 1)(document.getElementById('instructions'))"
    page.locator("#more").click()
    expect(page.locator("#more")).to_have_text("Less")
    assert page.evaluate(whole)
    page.locator("#more").click()
    expect(page.locator("#more")).to_have_attribute("aria-expanded", "false")
    assert not page.evaluate(whole)


@pytest.mark.parametrize(("zoom", "width"), [(3, 192), (99, None)])
def test_clips_have_the_zoom_of_the_settings_if_there_is_room(visit, desk, zoom, width):
    desk.zoom = zoom
    page = visit()
    size(page, (1280, 800))
    shown = page.locator("#left").bounding_box()["width"]
    stage = page.evaluate("document.getElementById('left').parentElement.getBoundingClientRect().width")
    assert shown == width or (width is None and 192 < shown <= stage and shown % 64 == 0)


@pytest.mark.slow
def test_what_is_said_lies_over_no_answer(visit):
    page = visit()
    for screen in SCREENS:
        size(page, screen)
        page.locator("[data-action=undo]").click()
        expect(page.locator("#toast")).to_have_text("Nothing to undo.")
        assert covered(page, "#toast", "[data-answer], [data-action=undo], .player button") == [], screen


def test_statistics_are_whole_on_a_phone(visit):
    page = visit("ada", "/statistics")
    page.wait_for_selector("#people td")
    for screen in (*PHONES, (768, 1024)):
        size(page, screen)
        assert wide(page) <= screen[0], screen
        rights = page.locator("#people td, #people input").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().right)"
        )
        assert max(rights) <= screen[0], screen
    row = page.get_by_role("row").filter(has_text="hurried")  # a table still, for who hears it
    assert row.get_by_role("cell").count() == 11
    assert page.get_by_role("columnheader", name="Agreement").count() == 1
