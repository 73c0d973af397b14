"""Whole sessions at the labelling page, in a real browser: nothing that somebody answered is lost or doubled."""

import pytest
from playwright.sync_api import Page, expect

from rlhf_ray.data.answers import ANSWERS
from tests.labelling.at_the_page import answer, lease_of, press, wait_for_pair, wait_saved, wait_until

ANSWER_OF = {key: kind.name for kind in ANSWERS.values() for key in kind.keys}


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_answer_by_mouse(visit, desk):
    page = visit()
    for name in ANSWERS:
        answer(page, page.locator(f"[data-answer={name}]").click)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == list(ANSWERS)
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
        wait_for_pair(page)
        page.keyboard.down(key)  # the browser's repetition
    page.keyboard.up(key)
    wait_saved(page)
    assert len(desk.answers) == 1


def test_presses_on_a_pair_that_nobody_can_have_seen_are_no_answers(visit, desk):
    page = visit()
    lease = lease_of(page)
    presses = """() => {
        const { dataset } = document.querySelector("#pair");
        const takes = [dataset.takes];
        for (const key of ["ArrowLeft", "ArrowRight", "ArrowLeft"]) dispatchEvent(new KeyboardEvent("keydown", { key }));
        document.querySelector("[data-answer=equal]").click();
        return [...takes, dataset.takes];
    }"""
    assert page.evaluate(presses) == ["true", "false"]
    expect(page.locator("#toast")).to_have_text("Too fast: that answer was ignored. This is a new pair.")
    second = wait_for_pair(page, lease)
    page.keyboard.press("ArrowRight")
    third = lease_of(page)
    page.keyboard.press("z")  # what was taken back was seen before: it may be answered at once
    page.wait_for_function("lease => document.querySelector('#pair').dataset.lease !== lease", arg=third)
    wait_until(lambda: desk.undone, page)
    page.wait_for_function("document.querySelector('#toast').textContent.startsWith('Undone')")
    assert page.locator("#pair").get_attribute("data-takes") == "true"
    page.keyboard.press("ArrowDown")
    wait_until(lambda: len(desk.answers) == 2, page)
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["left", "equal"]
    assert desk.answers[0][1].lease == lease
    assert second != lease


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_time_on_a_hidden_page_does_not_count(visit, desk):
    page = visit()
    hide(page, True)
    page.wait_for_timeout(600)
    hide(page, False)
    press(page, "ArrowLeft")
    wait_saved(page)
    given = desk.answers[0][1]
    assert given.hidden_ms >= 500
    assert given.view_ms < given.hidden_ms + 5000


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_leases_are_renewed_and_given_back(visit, desk, monkeypatch):
    monkeypatch.setattr("tests.labelling.fake_desk.LEASE_S", 3.0)
    page = visit()
    wait_until(lambda: len(desk.leases) == 4, page)
    lease, held = lease_of(page), set(desk.leases)
    wait_until(lambda: desk.renewed.count(lease) >= 3, page)
    asked = page.evaluate("import('/static/questions.js').then(({ PAGE }) => PAGE)")
    page.goto("about:blank")
    wait_until(lambda: set(desk.released) == held and desk.closed == [asked], page)
    assert not desk.leases


@pytest.mark.slow
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
    page.goto(site.link("ada"))  # another's link in the same tab
    expect(page.locator("#name")).to_have_text("ada")
    assert "token" not in page.url
    wait_for_pair(page)
    page.locator("#leave").click()
    expect(page.locator("#entrance")).to_be_visible()
    assert page.context.cookies() == []
    page.context.close()


@pytest.mark.slow
def test_two_people_label_in_two_tabs_of_one_browser(visit, site, desk):
    """Each tab labels, undoes and reloads as its own annotator; a new tab is of the one who signed in last."""
    ada = visit("ada")
    grace, new = (ada.context.new_page() for _ in range(2))
    grace.goto(site.link("grace"))
    wait_for_pair(grace)
    new.goto(site.url)
    expect(new.locator("#name")).to_have_text("grace")
    desk.fail_answers = 1  # the answer waits in the tab while another signs in
    for page, name in ((ada, "ada"), (grace, "grace"), (ada, "ada")):
        lease = press(page, "ArrowLeft")
        wait_saved(page)
        assert [(who, given.lease) for who, given, _ in desk.answers][-1] == (name, lease)
        page.reload()
        expect(page.locator("#name")).to_have_text(name)
        wait_for_pair(page)
    ada.keyboard.press("z")
    wait_until(lambda: len(desk.answers) == 2, ada)
    assert [who for who, _, _ in desk.answers] == ["ada", "grace"]
    ada.locator("#leave").click()
    expect(ada.locator("#entrance")).to_be_visible()
    press(grace, "ArrowRight")
    wait_saved(grace)
    assert desk.answers[-1][0] == "grace"
    grace.locator("#leave").click()
    expect(new.locator("#entrance")).to_be_visible()  # signed out in each tab
    new.reload()
    expect(new.locator("#entrance")).to_be_visible()


@pytest.mark.slow
def test_unsaved_answers_stay_their_annotators_when_another_signs_in_in_their_tab(visit, site, desk):
    page = visit("ada")
    page.route("**/api/answers", lambda route: route.abort())
    lease = press(page, "ArrowLeft")
    expect(page.locator("#saved")).to_have_text("Offline, 1 queued")
    page.unroute("**/api/answers")
    page.evaluate("link => (location.href = link)", site.link("grace"))
    expect(page.locator("#name")).to_have_text("grace")
    wait_for_pair(page)
    press(page, "ArrowRight")
    wait_saved(page)
    page.goto(site.link("ada"))
    expect(page.locator("#name")).to_have_text("ada")
    wait_saved(page)
    wait_until(lambda: len(desk.answers) == 2, page)
    assert {(who, given.lease == lease) for who, given, _ in desk.answers} == {("ada", True), ("grace", False)}


BLOCKED = """
    for (const name of ["localStorage", "sessionStorage"])
        Object.defineProperty(window, name, { get() { throw new DOMException("", "SecurityError"); } });
    Object.defineProperty(Navigator.prototype, "cookieEnabled", { get: () => false });
"""


@pytest.mark.slow
def test_a_browser_that_keeps_nothing_labels_and_says_why_a_reload_signs_out(browser, site, desk):
    page = browser.new_context().new_page()
    page.add_init_script(BLOCKED)
    for name in ("ada", "grace"):  # grace in ada's tab
        page.goto(site.link(name))
        expect(page.locator("#name")).to_have_text(name)
        wait_for_pair(page)
        page.keyboard.press("ArrowLeft")
        wait_saved(page)
        assert desk.answers[-1][0] == name
        page.context.clear_cookies()
    page.reload()
    expect(page.locator("#entrance-why")).to_contain_text("This browser blocks cookies and site data")
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


@pytest.mark.slow
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
    needs_the_server = page.locator("[data-action=undo], [data-answer], #again, a, #leave").locator("visible=true")
    expect(needs_the_server).to_have_count(0)
    page.keyboard.press("z")
    page.wait_for_timeout(200)
    assert not desk.undone
    expect(page.locator("#toast")).to_have_text("Can’t undo: Done. Thank you! You can close this page.")
    page.context.set_offline(False)
    desk.ended = False  # an answer was taken back
    wait_for_pair(page)
    expect(page.locator("[data-action=undo]")).to_be_visible()
    assert not page.title().startswith("✓")
