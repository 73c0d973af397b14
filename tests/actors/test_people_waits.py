"""What a run knows of the people it waits for, and how it leaves them; without Ray."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rlhf_ray.actors import page_handle, people
from rlhf_ray.actors.handles import Actor
from rlhf_ray.actors.page_handle import PageHandle
from rlhf_ray.actors.people import STOPPED_WITHIN, People
from rlhf_ray.labelling.open_pages import OPEN_FOR
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.runs.health import nobody_answers
from rlhf_ray.settings import PreferenceSettings
from tests.actors.rings import Heard, ring_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(people.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def left(clock: SimpleNamespace) -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def ada(left: list[tuple[Any, ...]], heard: Heard) -> People:
    page: Any = SimpleNamespace(actor=None, links={"ada": "…"}, serve=None, farewell=lambda *how: left.append(how))
    schedule = LabelSchedule(PreferenceSettings(teacher="human", mode="asynchronous"), env_steps=1000)
    return People(page, schedule, 1000, heard, share=1.0, limit=None, annotators=("ada",))


def test_silence_is_measured_while_questions_are_open_and_raises_an_alarm(ada: People, clock: SimpleNamespace) -> None:
    ada.look()
    clock.now += 600
    ada.look()  # nothing was open
    assert ada.metrics() == {"unanswered_seconds": 0.0}
    ada.questions._open[0] = 4
    for seconds, changes in ((0, 0), (100, 0), (250, 1), (40, 1)):
        clock.now += seconds
        ada.questions._changes = changes
        ada.look()
    row = ada.metrics()
    assert row == {"unanswered_seconds": 100.0}
    assert nobody_answers([row]) is None
    clock.now += 270
    ada.look()
    row = ada.metrics()
    assert row == {"unanswered_seconds": 310.0}
    alarm = nobody_answers([{}, row])
    assert alarm is not None
    assert (alarm.name, alarm.message) == ("nobody_answers", "Nobody answered for 5 min while questions were open.")
    assert "rlhf-ray links" in alarm.remedy
    assert nobody_answers([row, {}]) is None


def test_waits_are_told_once_a_second(ada: People, heard: Heard, clock: SimpleNamespace) -> None:
    ada._waiting._clock = lambda: clock.now
    ada.questions.pages = 1
    for answered in (0, 0, 1, 1):
        ada.waiting(answered, 3)
        clock.now += 0.5
    ada.end_wait()
    ada.waiting(1, 9)
    assert [(wait.answered, wait.wanted, wait.seconds, wait.pages) for wait in heard.waits] == [
        (0, 3, 0.0, 1), (1, 3, 1.0, 1), (1, 9, 0.0, 1)
    ]  # fmt: skip


def test_people_are_left_once_and_for_longer_at_the_end_of_the_training(
    ada: People, left: list[tuple[Any, ...]]
) -> None:
    ada.farewell("over")
    ada.farewell("stopped")  # what `close` says of every ring
    assert [how[:2] for how in left] == [("over", OPEN_FOR)]
    assert STOPPED_WITHIN < 10


def test_a_page_is_left_once_every_open_page_knows_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_handle, "ASK_EVERY", 0.0)
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
    handle.farewell("over", 10.0)
    assert told[-1].ending == "over"
    assert untold == []
    untold += [1] * 1000
    handle.farewell("stopped", 0.05)  # a page that never asks
    assert untold
    handle.farewell("stopped", 10.0, stop=lambda: True)

    def gone() -> int:
        raise RuntimeError("the actor died")

    Page.answers["untold"] = gone
    handle.farewell("over", 10.0)  # is no reason to fail


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_resumed_run_shows_error_rates_before_its_next_fit(
    tmp_path: Path, mode: Any, left: list[tuple[Any, ...]]
) -> None:
    preferences = PreferenceSettings(mode=mode, comparisons=20, initial_comparisons=12, rounds=4)
    with ring_in(tmp_path, preferences) as ring:
        found = ring.begin(200).fit.error_rates
        (tmp_path / "checkpoint").mkdir()
        ring.save(tmp_path / "checkpoint")
    assert found.keys() == {"oracle"}
    told: list[Any] = []
    page: Any = SimpleNamespace(
        actor=None,
        links={},
        serve=None,
        tell=told.append,
        suspect=lambda suspicions: None,
        farewell=lambda *how: left.append(how),
    )
    with ring_in(tmp_path, preferences) as ring:
        people = People(page, ring.schedule, 1000, Heard(), share=1.0, limit=None, annotators=("oracle",))
        ring.members.people = people  # who are not asked
        ring.load(tmp_path / "checkpoint")
        deadline = time.monotonic() + 20
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        assert told[0].error_rates == found
