"""The page for answers to look at again, in a browser: one key keeps an answer or changes it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.labelling.at_the_page import answer, lease_of, pixels, press, wait_for_pair, wait_until
from tests.labelling.fake_desk import FakeDesk, served
from tests.labelling.office import Office, pairs_of
from tests.labelling.test_page_look import assert_accessible


@pytest.mark.slow
def test_the_owner_looks_at_each_again_with_one_key(visit, desk: FakeDesk) -> None:
    page = visit("ada")
    expect(page.locator("#again")).to_be_hidden()
    doubts = [desk.doubt(number, "grace", answer) for number, answer in ((1, "left"), (2, "right"), (3, "equal"))]
    page.reload()
    wait_for_pair(page)
    page.get_by_role("link", name="3 answers to look at again").click()
    asked = len(desk.answers)
    page.wait_for_url("**/again")
    wait_for_pair(page)
    expect(page.locator("#before")).to_contain_text(
        "grace answered “A is better”, which is wrong with a probability of 89 %"
    )
    assert [int(side[0, 0, 1]) for side in pixels(page).values()] == [2, 3]  # the films' numbers
    expect(page.locator(".given")).to_have_attribute("data-answer", "left")
    assert_accessible(page)
    press(page, "Enter")
    second = lease_of(page)
    page.reload()
    assert wait_for_pair(page) == second
    page.keyboard.press("s")  # of the other page
    desk.fail_answers = 1
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#toast")).to_contain_text("not saved")
    press(page, "ArrowLeft")
    third = lease_of(page)
    page.keyboard.press("z")
    again = wait_for_pair(page, third)
    expect(page.locator("#before")).to_contain_text("You left it at “A is better”. 2 to look at.")
    answer(page, page.get_by_role("button", name="Equal", exact=False).click)
    page.get_by_role("button", name="Keep the answer").click()
    expect(page.locator("#reason")).to_have_text("No answers to look at again.")
    assert [(target, answer) for target, _, answer in desk.reviews] == [
        (doubts[0].event_id, "left"),
        (doubts[1].event_id, "left"),
        (again, "equal"),
        (doubts[2].event_id, "equal"),
    ]
    page.get_by_role("link", name="Back to labelling").click()
    wait_for_pair(page)
    expect(page.locator("#again")).to_be_hidden()
    assert len(desk.answers) == asked


def test_at_a_real_desk_what_was_looked_at_stays_so(context: BrowserContext, tmp_path: Path) -> None:
    office, pairs = Office(tmp_path / "store"), pairs_of(2)

    async def answered() -> None:
        await office.answer_all(pairs, "grace")
        office.desk.suspect({(pair, "grace"): 0.9 for pair in pairs.ids})

    ThreadPoolExecutor(1).submit(asyncio.run, answered()).result()  # Playwright's loop is running in this thread
    with served(office.desk) as site:  # type: ignore[arg-type]
        page: Page = context.pages[0]
        page.goto(site.link("ada"))
        page.get_by_role("link", name="2 answers to look at again").click()
        press(page, "Enter")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#reason")).to_have_text("No answers to look at again.")
        wait_until(lambda: len(office.rows()) == 4, page)
        page.goto("about:blank")
    comparisons = office.store.load()
    assert sorted(comparisons.preferences.tolist())[-2:].count(0.5) == 1
