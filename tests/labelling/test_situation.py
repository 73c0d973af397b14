"""What pages and the run say while people are waited for, and at the end; and what answers tell of who gave them."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rlhf_ray.labelling.answers import statistics
from rlhf_ray.labelling.films import Episode, Film, FilmInfo
from rlhf_ray.labelling.situation import OPEN_FOR, OpenPages, Situation, about
from rlhf_ray.labelling.waiting import NOBODY_AFTER, PeopleWait, Waiting, spoken
from rlhf_ray.measure.agreement import alpha
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.store import Event, PreferenceStore
from tests.labelling.office import Office, pairs_of
from tests.made_up import some_fragments

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


CLIPS = some_fragments(8)
IDS = CLIPS.ids()


def label(
    name: str, by: str, preference: float, pair: tuple[int, int] = (0, 1), kind: Any = "label", **more: Any
) -> Event:
    return Event(name, kind, by, IDS[pair[0]], IDS[pair[1]], preference, **more)


def check(name: str, by: str, preference: float, pair: tuple[int, int] = (0, 1), **extra: Any) -> Event:
    return label(name, by, preference, pair, "check", extra=extra)


def of(
    path: Path, events: list[Event], weights: dict[str, float] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All statistics, and those of each annotator by name."""
    store = PreferenceStore(path)
    store.record(events, CLIPS)
    found = statistics(store.events(), weights or {})
    json.dumps(found, allow_nan=False)
    return found, {one["name"]: one for one in found["annotators"]}


def test_without_events_nothing_is_told(tmp_path: Path) -> None:
    found = of(tmp_path, [])[0]
    assert (found["labels"], found["alpha"], found["raw_agreement"], found["annotators"]) == (0, None, None, [])
    assert found["alpha_words"] == "needs pairs labelled by two annotators"


def test_the_agreement_is_that_of_people_on_shared_pairs_whichever_clip_comes_first(tmp_path: Path) -> None:
    events = [
        *(label("a1", "anna", 1.0), label("a2", "anna", 0.0, (2, 3)), label("a3", "anna", 0.5, (4, 5))),
        *(label("b1", "bert", 1.0), label("b2", "bert", 0.0, (3, 2)), label("b3", "bert", 1.0, (6, 7))),
        *(label("c1", "cora", 0.0), label("o1", "oracle", 1.0, annotator_type="scripted")),
        label("o2", "oracle", 1.0, (4, 5), annotator_type="scripted"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 9
    assert found["raw_agreement"] == pytest.approx(1 / 4)
    assert found["alpha"] == pytest.approx(alpha(["llr", "rl"]))  # of the pair, and not which of eight clips
    assert found["shared_pairs"] == 2
    assert each["anna"]["agreement"] == pytest.approx(1 / 3)
    assert [each[name]["agreement_of"] for name in ("anna", "bert", "cora", "oracle")] == [3, 3, 2, 4]
    assert each["cora"]["agreement"] == 0.0
    assert [each[name]["agreement_with_scripted"] for name in ("anna", "bert", "cora", "oracle")] == [
        0.5,
        1.0,
        0.0,
        None,
    ]
    assert each["anna"]["ties"] == pytest.approx(1 / 3)
    assert each["oracle"]["labels"] == 2


def test_whoever_is_left_out_is_compared_with_others_but_not_they_with_them(tmp_path: Path) -> None:
    events = [label("a", "anna", 1.0), label("b", "bert", 1.0), label("c", "cora", 0.0)]
    found, each = of(tmp_path, events, {"cora": 0.0, "bert": 2.0})
    assert found["raw_agreement"] == 1.0
    assert [each[name]["agreement"] for name in ("anna", "bert", "cora")] == [1.0, 1.0, 0.0]
    assert [each[name]["weight"] for name in ("anna", "bert", "cora")] == [1.0, 2.0, 0.0]


def test_the_side_bias_is_of_the_sides_as_shown_and_the_pace_the_median(tmp_path: Path) -> None:
    events = [
        label("a", "anna", 1.0, view_ms=1000),
        label("b", "anna", 0.0, (2, 3), presented_swapped=True, view_ms=2000),
        label("c", "anna", 1.0, (4, 5), presented_swapped=True, view_ms=9000),
        label("d", "anna", 0.5, (6, 7)),
    ]
    _, each = of(tmp_path, events)
    assert each["anna"]["left_share"] == pytest.approx(2 / 3)
    assert each["anna"]["seconds_per_label"] == 2.0


def test_answers_of_stores_without_the_shown_side_are_as_stored(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([label("a", "anna", 1.0), label("b", "anna", 0.0, (2, 3))], CLIPS)
    events = store.events()
    at = events.column_names.index("presented_swapped")
    unknown = events.set_column(at, "presented_swapped", pa.nulls(len(events), pa.bool_()))
    assert statistics(unknown, {})["annotators"][0]["left_share"] == 0.5


def test_catches_tell_of_accuracy_and_repeats_of_consistency(tmp_path: Path) -> None:
    events = [
        label("first", "anna", 1.0),
        check("same", "anna", 0.5, (2, 2), catch="same", expected=0.5),
        check("same2", "anna", 1.0, (3, 3), catch="same", expected=0.5),
        check("known", "anna", 0.0, (4, 5), catch="known", expected=0.0),
        check("again", "anna", 1.0, catch="repeat", expected=1.0, repeats="first"),
        check("turned", "anna", 1.0, (1, 0), catch="repeat", repeats="first"),
        check("lost", "anna", 1.0, (6, 7), catch="repeat", repeats="nothing"),
        check("mine", "bert", 1.0, (4, 5), catch="known", expected=0.0),
        Event("undo", "retract", "bert", target="mine"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 1  # checks are none
    assert (each["anna"]["catches"], each["anna"]["labels"]) == (6, 1)
    assert each["anna"]["catch_accuracy"] == pytest.approx(2 / 3)
    assert each["anna"]["self_consistency"] == 0.5
    assert (each["anna"]["catch_accuracy_of"], each["anna"]["self_consistency_of"]) == (3, 2)
    assert (each["bert"]["catches"], each["bert"]["catch_accuracy"]) == (0, None)


def test_a_repeat_is_compared_with_what_took_the_place_of_a_retracted_answer(tmp_path: Path) -> None:
    events = [
        label("first", "anna", 1.0),
        check("again", "anna", 0.0, catch="repeat", repeats="first"),
        Event("undo", "retract", "anna", target="first"),
    ]
    assert of(tmp_path, events)[1]["anna"]["self_consistency"] is None
    assert of(tmp_path, [label("second", "anna", 0.0)])[1]["anna"]["self_consistency"] == 1.0


def test_only_what_holds_counts(tmp_path: Path) -> None:
    events = [
        label("a", "anna", 1.0, view_ms=90_000),
        label("b", "anna", 0.0, view_ms=1000),  # a newer answer to the same pair
        label("c", "anna", 1.0, (2, 3)),
        Event("d", "retract", "anna", target="c"),
        Event("e", "skip", "anna", IDS[4], IDS[5], extra={"answer": "skip"}),
        Event("f", "skip", "anna", IDS[4], IDS[5], extra={"answer": "incomparable"}),
        Event("g", "skip", "anna", IDS[4], IDS[5]),
        Event("h", "flag", "anna", IDS[4], IDS[5]),
        Event("i", "retract", "anna", target="h"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 1
    anna = each["anna"]
    assert (anna["labels"], anna["skips"], anna["incomparable"]) == (1, 2, 1)
    assert (anna["seconds_per_label"], anna["left_share"], anna["agreement"]) == (1.0, 0.0, None)


def test_the_newest_fits_error_rates_are_beside_the_answers(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([label("a1", "anna", 1.0), label("b1", "bert", 0.0)], CLIPS)
    found = statistics(store.events(), {}, {"anna": ErrorRate(0.85, 0.7, 0.95, 40, 0.999)})
    anna, bert = found["annotators"]
    names = ("error_rate", "error_rate_low", "error_rate_high", "error_rate_kind")
    assert [anna[name] for name in names] == [0.85, 0.7, 0.95, "inverted"]
    assert [bert[name] for name in names] == [None] * 4
