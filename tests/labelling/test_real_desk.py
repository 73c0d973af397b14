"""Pages at a desk with a real store, where nobody is asked twice and no answer is lost; and the page of second looks."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Error, Page, expect

from tests.labelling.at_the_page import answer, lease_of, pixels, press, wait_for_pair, wait_saved, wait_until
from tests.labelling.fake_desk import FakeDesk, Served, served
from tests.labelling.office import Office, pairs_of
from tests.labelling.test_page_look import assert_accessible


@pytest.fixture
def serve(office: Office, context: BrowserContext) -> Iterator[Callable[[int], tuple[Served, BrowserContext]]]:
    """Serves the page about so many pairs; a browser of its own."""
    with served(office.desk) as site:  # type: ignore[arg-type]

        def start(pairs: int) -> tuple[Served, BrowserContext]:
            # In a thread, since Playwright's loop is running in this one.
            ThreadPoolExecutor(1).submit(asyncio.run, office.ask(0, pairs_of(pairs))).result()
            return site, context

        yield start
        context.pages[0].goto("about:blank")


def come(context: BrowserContext, site: Served) -> Page:
    page = next((page for page in context.pages if page.url == "about:blank"), None) or context.new_page()
    page.goto(site.link())
    wait_for_pair(page)
    return page


def press_until_all_are_answered(office: Office, *pages: Page) -> None:
    """Press as fast as the pages take it."""
    deadline = time.monotonic() + 60
    while office.queue.open():
        assert time.monotonic() < deadline, f"{office.queue.open()} pairs were never asked for"
        for page in pages:
            page.keyboard.press("ArrowLeft")
    for page in pages:
        wait_saved(page)


def assert_each_was_asked_once(office: Office, pairs: int) -> None:
    rows = office.rows()
    assert len(rows) == len({row["pair_id"] for row in rows}) == pairs
    assert {row["kind"] for row in rows} == {"label"}


@pytest.mark.slow
@pytest.mark.parametrize("pages", [1, 2])
def test_whoever_presses_at_full_speed_is_asked_nothing_twice(serve: Any, office: Office, pages: int) -> None:
    """Also on two pages of one person."""
    site, context = serve(12)
    office.local.delay = 0.2
    press_until_all_are_answered(office, *[come(context, site) for _ in range(pages)])
    assert_each_was_asked_once(office, 12)


@pytest.mark.slow
def test_a_pair_answered_on_another_page_leaves_the_screen(serve: Any, office: Office) -> None:
    """A laptop that slept for longer than its leases: the same person has answered them elsewhere meanwhile."""
    site, context = serve(4)
    page = come(context, site)
    page.wait_for_timeout(500)
    lease = lease_of(page)
    office.queue.answered("ada", office.desk._leases.read(lease, "ada").shown, "left", "f" * 32)
    assert wait_for_pair(page, lease) != lease


@pytest.mark.slow
def test_a_crashed_page_s_pairs_come_to_the_page_opened_next(serve, office, browser, monkeypatch):
    """In another browser, too: not only once their leases have ended, after two minutes."""
    monkeypatch.setattr("rlhf_ray.labelling.questions.QUIET", 2.5)
    site, context = serve(6)
    beside = come(context, site)  # stays open, but in the background
    before = beside.context.new_page()
    before.goto(site.link())
    wait_for_pair(before)
    before.wait_for_timeout(500)  # for what it fetches ahead
    with contextlib.suppress(Error):
        before.goto("chrome://crash", timeout=2000)
    another = browser.new_context()
    after = come(another, site)
    # As a person who goes back to that tab. Chromium slows a page in the background, and its pairs would take most of a minute.
    beside.bring_to_front()
    press_until_all_are_answered(office, after, beside)
    assert_each_was_asked_once(office, 6)
    another.close()


@pytest.mark.slow
def test_answers_kept_while_nothing_is_stored_are_not_asked_for_again(serve: Any, office: Office) -> None:
    """Neither by the page that keeps them, nor once it is reloaded, nor later than their leases."""
    office.queue.lease_seconds = 2.0
    site, context = serve(8)
    page = come(context, site)
    office.local.broken = True
    for _ in range(3):
        press(page, "ArrowLeft")
    expect(page.locator("#saved")).to_have_text("Saving 3 …")
    expect(page.locator("#toast")).to_have_text("not saved; try again")
    page.reload()
    wait_for_pair(page)
    expect(page.locator("#saved")).to_have_text("Saving 3 …")
    page.wait_for_timeout(2200)  # without the page, the leases of what it keeps would have ended
    press(page, "ArrowLeft")
    office.local.broken = False
    press_until_all_are_answered(office, page)
    assert_each_was_asked_once(office, 8)


@pytest.mark.slow
def test_a_refused_answer_is_kept_shown_and_discarded_on_purpose_alone(serve: Any, office: Office) -> None:
    site, context = serve(8)
    page = come(context, site)
    leases, office.desk._leases = office.desk._leases, type(office.desk._leases)(b"another run")
    page.keyboard.press("ArrowLeft")
    badge = page.locator("#refused-count")
    expect(badge).to_have_text("1 answer rejected")
    expect(page.locator("#saved")).to_have_text("Others saved")
    page.reload()
    expect(badge).to_have_text("1 answer rejected")
    assert office.rows() == []
    badge.click()
    expect(page.locator("#refused-why")).to_contain_text("1 answer: This pair belongs to another page or annotator")
    page.locator("#refused-retry").click()  # in vain
    page.wait_for_timeout(300)
    expect(badge).to_have_text("1 answer rejected")
    office.desk._leases = leases
    badge.click()
    page.locator("#refused-retry").click()
    expect(page.locator("#saved")).to_have_text("All saved")
    expect(badge).to_be_hidden()
    expect(page.locator("#refused")).to_be_hidden()
    assert len(office.rows()) == 1
    office.desk._leases = type(leases)(b"a third run")
    wait_for_pair(page)
    page.keyboard.press("ArrowLeft")
    badge.click()
    page.locator("#refused-discard").click()
    expect(badge).to_be_visible()
    page.locator("#refused-discard", has_text="Discard 1 answer for good").click()
    expect(badge).to_be_hidden()
    page.reload()
    page.wait_for_timeout(300)
    expect(badge).to_be_hidden()
    assert len(office.rows()) == 1


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
