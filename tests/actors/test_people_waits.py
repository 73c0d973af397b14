"""What a run knows of the people it waits for, and how it leaves them; without Ray."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rlhf_ray.actors import people
from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.people import STOPPED_WITHIN, PageHandle, People
from rlhf_ray.actors.synchronous import ActorRing
from rlhf_ray.labelling.situation import OPEN_FOR
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.runs.health import nobody_answers
from rlhf_ray.settings import PreferenceSettings
from tests.actors.rings import Heard, at, ring_in
from tests.made_up import wait_for


@pytest.fixture
def left(clock: SimpleNamespace) -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def heard() -> Heard:
    return Heard()


def people_at(
    told: list[Any], left: list[Any], schedule: LabelSchedule, heard: Heard, names: str = "a", limit: int | None = None
) -> People:
    """Annotators whose page notes what it is told."""
    page: Any = SimpleNamespace(
        actor=None,
        links=dict.fromkeys(names, ""),
        serve=None,
        tell=told.append,
        suspect=lambda suspicions: None,
        farewell=lambda *how: left.append(how),
    )
    return People(page, schedule, 1000, heard, share=1.0, limit=limit, annotators=tuple(names))


ASYNCHRONOUS = PreferenceSettings(teacher="human", mode="asynchronous")


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def ada(told: list[Any], left: list[tuple[Any, ...]], heard: Heard) -> People:
    return people_at(told, left, LabelSchedule(ASYNCHRONOUS, env_steps=1000), heard)


def test_silence_is_measured_while_questions_are_open_and_raises_an_alarm(ada: People, clock: SimpleNamespace) -> None:
    ada.look()
    clock.now += 600
    ada.look()  # nothing was open
    assert ada.metrics() == {"unanswered_seconds": 0.0}
    ada.questions._open[0] = 4
    for seconds, changes in ((0, 0), (100, 0), (250, 1), (40, 1)):
        clock.now += seconds
        ada.questions.changes = changes
        ada.look()
    row = ada.metrics()
    assert row == {"unanswered_seconds": 100.0}
    assert nobody_answers([row]) is None
    clock.now += 270
    ada.look()
    row = ada.metrics()
    assert row == {"unanswered_seconds": 310.0}
    alarm = nobody_answers([{}, row])
    assert (alarm.name, alarm.message) == ("nobody_answers", "Nobody answered for 5 min while questions were open.")
    assert "rlhf-ray links" in alarm.remedy
    assert nobody_answers([row, {}]) is None


@pytest.mark.parametrize(("share", "open_"), [(1.0, 0), (1.0, 3), (0.25, 2)])
def test_the_next_question_comes_with_the_iteration_in_which_its_label_falls_due(ada, told, monkeypatch, share, open_):
    now, answered = 0.0, round(share * ada.schedule.due(0.33)) - open_
    monkeypatch.setattr(people.time, "time", lambda: now)
    ada.questions.share, ada.questions._open = share, {0: open_}
    seconds, more = 10.0, 0.01
    for number in range(30):  # of which the first ten, twice as slow, are no longer among the newest
        now = seconds * (number + min(number, 10) - 30)
        ada.advanced(more * number)
        if not number:
            ada.tell(0, 1, answered)
            assert told[-1].next_question is None  # no pace yet
        if number == 1:
            ada.tell(0, 1, answered)
            assert told[-1].next_question is not None
    label = next(label for label in range(1000) if label * share >= answered + open_ + 1)
    ahead = 1
    while ada.schedule.due(more * (29 + ahead)) < label:
        ahead += 1
    assert ahead > 1
    ada.tell(290, 1, answered)
    assert told[-1].next_question == pytest.approx(now + seconds * ahead)
    assert (told[-1].first_labels, told[-1].env_steps, told[-1].total_env_steps) == (None, 290, 1000)
    ada.tell(290, 0, answered)
    assert (told[-1].first_labels, told[-1].next_question) == (ada.schedule.first_fit, None)
    last = round(share * ada.schedule.preferences.comparisons) - open_ - 1
    for number, comes in ((last, True), (last + 1, False)):
        ada.tell(290, 1, number)
        assert (told[-1].next_question is not None) == comes


def test_the_next_round_comes_as_long_after_this_one_as_this_one_after_the_last(ada, told, monkeypatch):
    now = 0.0
    monkeypatch.setattr(people.time, "time", lambda: now)
    ada.schedule = LabelSchedule(PreferenceSettings(teacher="human"), env_steps=1000)
    for asked, answered in ((100.0, 130.0), (190.0, 250.0)):
        now = asked
        ada.asks()
        now = answered
        ada.has_answered(500, 1, 20)
    assert told[0].next_question is None
    assert told[1].next_question == 250 + (190 - 130)
    assert told[1].waiting_for == "the agent to learn from this round"


def test_what_people_wait_for_depends_on_clips_first_answers_and_version(ada: People, told: list[Any]) -> None:
    first = ada.schedule.first_fit
    for version, answered, gathered in ((0, 0, 0.5), (0, first - 1, None), (0, first, None), (1, first, None)):
        ada.tell_while_training(100, version, answered, gathered=gathered)
    clips, training = "the agent's first clips", "the training to continue (questions are spread over it)"
    assert [(each.waiting_for, each.gathered) for each in told] == [
        (clips, 0.5), (clips, None), ("the reward model to learn from these first answers", None), (training, None)
    ]  # fmt: skip


@pytest.mark.parametrize(("names", "limit", "most"), [("ab", 100, 16), ("ab", 5, 5), ("", 100, 8), ("ab", None, None)])
def test_few_questions_are_open_for_each_person(names: str, limit: int | None, most: int | None) -> None:
    made = people_at([], [], LabelSchedule(ASYNCHRONOUS, env_steps=1000), Heard(), names, limit)
    assert made.questions.limit == most


def test_people_are_left_once_and_for_longer_at_the_end_of_the_training(ada, left):
    ada.farewell("over", env_steps=24_000)
    ada.farewell("stopped")  # what `close` says of every ring
    assert [(*how[:2], how[-1]) for how in left] == [("over", OPEN_FOR, 24_000)]
    assert STOPPED_WITHIN < 10


@pytest.mark.parametrize("pages", [0, 1])
def test_open_pages_get_an_episode_of_the_trained_policy_before_they_hear_of_the_end(ada, left, pages):
    ada.questions.pages = pages
    actors: Any = SimpleNamespace(people=ada)
    source: Any = SimpleNamespace(film_last=lambda policy, steps: left.append((policy, steps)))
    ring = ActorRing(actors, ada.schedule, source, Heard())
    for _ in range(2):
        ring.farewell(24_000, policy=lambda: "the trained policy")
    assert [how[0] for how in left] == ["the trained policy"] * pages + ["over"]
    assert left[0][-1] == left[-1][-1] == 24_000


def test_a_page_is_left_once_every_open_page_knows_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "ASK_EVERY", 0.0)
    told: list[Any] = []
    untold = [2, 1, 0]

    class Page(Actor[Any]):
        answers: ClassVar[dict[str, Any]] = {
            "tell": lambda *what: told.append(what[0]),
            "start": lambda port: {"ada": "http://127.0.0.1:8765/#token=x"},
            "untold": lambda: untold.pop(0),
            "suspect": lambda suspicions: None,
        }

        def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
            return self.answers[method](*arguments)

    handle = PageHandle(Page(), Heard(), lambda value, timeout=None: value, 8765)
    handle.farewell("over", 10.0, env_steps=24_000)
    assert (told[-1].ending, told[-1].env_steps) == ("over", 24_000)
    assert not untold
    untold += [1] * 1000
    handle.farewell("stopped", 0.05)  # a page that never asks
    assert untold
    handle.farewell("stopped", 10.0, stop=lambda: True)

    def gone() -> int:
        raise RuntimeError("the actor died")

    Page.answers["untold"] = gone
    handle.farewell("over", 10.0)  # is no reason to fail


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_resumed_run_shows_error_rates_before_its_next_fit(tmp_path, mode, told, left):
    preferences = PreferenceSettings(mode=mode, comparisons=20, initial_comparisons=12, rounds=4)
    with ring_in(tmp_path, preferences) as ring:
        found = ring.begin(200).fit.error_rates
        (tmp_path / "checkpoint").mkdir()
        ring.save(tmp_path / "checkpoint")
    assert found.keys() == {"oracle"}
    with ring_in(tmp_path, preferences) as ring:
        ring.actors.people = people_at(told, left, ring.schedule, Heard())  # who are not asked
        ring.load(tmp_path / "checkpoint")
        wait_for(lambda: told)
        assert told[0].error_rates == found


def test_people_hear_of_each_rounds_wait_and_of_what_its_fit_found(tmp_path, told, left, heard):
    preferences = PreferenceSettings(comparisons=20, initial_comparisons=12, rounds=4, schedule="constant")
    now, progress = 100.0, list[float]()
    with ring_in(tmp_path, preferences) as ring:
        ring.begin(200)
        people = people_at(told, left, ring.schedule, heard)
        people._waiting._clock = lambda: now
        ring.actors.people, fit = people, ring.actors.fit  # who are not asked

        def watched(steps: int, until: int, part: float) -> Any:
            progress.append(part)
            return fit(steps, until, part)

        ring.actors.fit = watched
        for number in (1, 2):
            heard.waits.clear()
            report = ring.advance(at(number / 4, 200 + 100 * number, room=0))
            first = heard.waits[0]
            assert (first.answered, first.wanted, first.seconds) == (10 + 2 * number, 12 + 2 * number, 0.0)
            assert people.error_rates == report.fit.error_rates
            assert {situation.env_steps for situation in told[-2:]} == {200 + 100 * number}
            now += 100
    assert progress == [1 / 4, 2 / 4]
