"""What pages and the run say while people are waited for, and that pages are told when labelling is over."""

import asyncio
import time
from pathlib import Path

import pytest

from rlhf_ray.labelling.films import Episode, Film, FilmInfo
from rlhf_ray.labelling.situation import OPEN_FOR, OpenPages, Situation, about
from rlhf_ray.labelling.waiting import NOBODY_AFTER, PeopleWait, Waiting, spoken
from tests.labelling.office import Office, pairs_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "a few seconds"),
        (34, "about 30 s"),
        (55, "about 1 min"),
        (150, "about 2 min"),
        (5000, "about 83 min"),
        (9e3, "about 2 h"),
    ],
)
def test_an_estimate_is_as_exact_as_it_is(seconds: float, words: str) -> None:
    assert about(seconds) == words


async def test_somebody_alone_does_not_read_of_others(tmp_path: Path) -> None:
    office = Office(tmp_path / "store", overlap_share=1.0)
    await office.ask(0, pairs_of(1))
    shown = await office.next("ada")
    office.local.delay = 0.05
    saving = asyncio.create_task(office.give("ada", shown, "left"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await office.desk.progress("ada"))["reason"] == "Your answers are being saved. More pairs will come."
    await saving
    assert "waiting for" in str((await office.desk.progress("ada"))["reason"])  # nobody is there for a second opinion


async def test_who_waits_for_a_second_opinion_is_told_so(tmp_path: Path) -> None:
    office = Office(tmp_path / "store", overlap_share=1.0)
    await office.ask(0, pairs_of(1))
    await office.desk.next("bob", 0, [])  # bob is there, and holds nothing
    await office.give("ada", await office.next("ada"), "left")
    assert "You have answered all open pairs" in str((await office.desk.progress("ada"))["reason"])
    await office.desk.next("bob", 1, [])
    assert "with other annotators" in str((await office.desk.progress("cora"))["reason"])


async def test_why_there_is_nothing_to_label_is_said_in_words(office: Office) -> None:
    async def reason(who: str) -> str | None:
        office.desk._count = None
        why: str | None = (await office.desk.progress(who))["reason"]
        return why

    assert "waiting for the agent's first clips" in str(await reason("ada"))
    await office.ask(0, pairs_of(1))
    assert await reason("ada") is None
    shown = await office.next("ada")
    assert "with other annotators or already answered by you" in str(await reason("bob"))
    await office.give("ada", shown, "left")
    office.desk.tell(Situation(wanted=5, waiting_for="rain", next_question=time.time() + 125))
    assert await reason("ada") == "Nothing to label right now: waiting for rain. Next pair in about 2 min."
    office.desk.tell(Situation(wanted=5, waiting_for="rain", next_question=time.time() - 1))
    assert await reason("ada") == "Nothing to label right now: waiting for rain."


async def test_a_page_counts_as_informed_once_it_fetched_the_last_episode(office: Office) -> None:
    desk, name = office.desk, "1" * 32
    film = Film(FilmInfo("e" * 64, 4, 2, 8, 8, pixelated=False), b"frames")
    desk.tell(Situation(ending="over"), Episode(film, 30.0, 4, True, 7, 24_000))
    await desk.over(name)
    assert desk.pages.uninformed == 1
    assert await desk.film(film.info.id, name) == b"frames"
    assert desk.pages.uninformed == 0


async def test_pages_are_told_that_labelling_is_over_and_counted_until_they_are(office: Office) -> None:
    desk, one, two = office.desk, "1" * 32, "2" * 32
    await office.ask(0, pairs_of(3))
    shown = (await desk.next("ada", 1, [], one))[0]
    other = (await desk.next("bob", 1, [], two))[0]
    for page in (one, two):
        assert await desk.over(page, 1) == {"ended": False, "over": None}
    assert (desk.pages.open, desk.pages.uninformed) == (2, 2)
    await office.give("ada", shown, "left")
    desk._count = None
    desk.tell(Situation(wanted=1, env_steps=100))
    said = await desk.over(one)
    assert (said["ended"], "All 1 labels are in, and training continues" in said["over"]) == (False, True)
    await desk.over(two, 1)  # it has a question on screen, whose answer still counts
    assert desk.pages.uninformed == 1
    await office.give("bob", other, "left")
    desk.tell(Situation(wanted=1, env_steps=100, ending="over"))
    assert (await desk.progress("ada"))["labels"] == 2  # counted anew, although counted a moment ago
    assert await desk.next("bob", 3, [other.lease], two) == []
    assert (await desk.progress("bob"))["queue"] == 0  # although a pair is left
    assert "training is over" in (await desk.over(two))["over"]
    assert (desk.pages.open, desk.pages.uninformed) == (2, 0)
    await desk.release("bob", [], two)
    assert desk.pages.open == 1
    desk.tell(Situation(wanted=3))  # an answer was taken back: more is to do
    assert await desk.over(one) == {"ended": False, "over": None}
    assert desk.pages.uninformed == 1


def test_a_page_in_the_background_is_open_for_longer_than_browsers_let_it_sleep() -> None:
    now = 0.0
    pages = OpenPages(clock=lambda: now)
    pages.heard("a", told=False)
    pages.heard(None, told=False)  # a program without an id
    now = 61.0  # a tab in the background may ask once a minute
    assert (pages.open, pages.uninformed) == (1, 1)
    now = 61.0 + OPEN_FOR
    assert (pages.open, pages.uninformed) == (0, 0)


def test_a_wait_is_reported_once_a_second_with_its_silence() -> None:
    now, seen = 0.0, list[PeopleWait]()
    waiting = Waiting(seen.append, clock=lambda: now)
    for moment, answered in ((0.0, 3), (0.4, 3), (1.0, 3), (2.0, 4), (400.0, 4)):
        now = moment
        waiting.look(answered, 50, pages=0)
    assert [(wait.answered, wait.seconds, wait.quiet) for wait in seen] == [
        (3, 0.0, 0.0), (3, 1.0, 1.0), (4, 2.0, 0.0), (4, 400.0, 398.0)
    ]  # fmt: skip
    assert [wait.alarm is not None for wait in seen] == [False, False, False, True]
    assert seen[-1].alarm == "Nobody has answered for 7 min (4 of 50 answered), and no labelling page is open."
    assert str(seen[-1]) == "waiting for people: 4 of 50 answered, 7 min, the last answer 7 min ago"
    waiting.end()
    now = 1000.0
    waiting.look(4, 60)  # another wait
    assert (seen[-1].seconds, seen[-1].quiet, seen[-1].alarm) == (0.0, 0.0, None)


def test_words() -> None:
    assert [spoken(seconds) for seconds in (0, 59, 60, 780, 5400)] == ["0 s", "59 s", "1 min", "13 min", "1.5 h"]
    assert str(PeopleWait(29, 50, 780.0, 10.0)) == "waiting for people: 29 of 50 answered, 13 min"
    assert PeopleWait(0, 5, NOBODY_AFTER, NOBODY_AFTER - 1).alarm is None
    assert str(PeopleWait(0, 5, 400.0, 400.0, 2).alarm).endswith("(0 of 5 answered); open labelling pages: 2.")
