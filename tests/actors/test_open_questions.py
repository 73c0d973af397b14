"""The ring's count of open questions, and how it asks people while the first fragments are made; without Ray."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from rlhf_ray.actors import gatherer as gatherers
from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.gatherer import ChosenPairs, GathererProgress, OpenQuestions, as_arrays, losses
from rlhf_ray.actors.ring import Progress, never, no_policy
from rlhf_ray.actors.synchronous import SynchronousRing
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.queries.due import FitSchedule, Skips, share_of_questions
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import Tally
from tests.actors.test_fragment_source import Done
from tests.made_up import some_comparisons

LOST = ray.exceptions.ObjectLostError("00", "", "")


class Gatherer(Actor[Any]):
    """Answers with the next of `progress`; its pairs may be lost."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.waited: list[Any] = []
        self.progress: list[GathererProgress] = []
        self.lost: set[int] = set()

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "wait":
            self.waited.append(arguments)
            return Done(self.progress.pop(0))
        if arguments[0] in self.lost:
            raise LOST
        self.asked.append(arguments)
        return Done(None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(gatherers.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def gatherer() -> Gatherer:
    return Gatherer()


@pytest.fixture
def questions(gatherer: Gatherer, clock: SimpleNamespace) -> OpenQuestions:
    return OpenQuestions(gatherer, "answering", share=1.0, limit=None)


def heard(questions: OpenQuestions, gatherer: Gatherer, *progress: GathererProgress) -> list[tuple[bool, int]]:
    """Whether each piece of news said that something was stored, and how many questions were open when it was read."""
    gatherer.progress += progress
    seen = []
    for _ in progress:
        open_: list[int] = []

        async def read(open_: list[int] = open_) -> None:
            open_.append(questions.open)

        stored = asyncio.run(questions.listen(read))
        seen.append((stored, open_[0] if open_ else -1))
    return seen


def test_questions_are_open_until_they_are_answered_and_close_once_the_store_was_read(
    questions: OpenQuestions, gatherer: Gatherer, clock: SimpleNamespace
) -> None:
    for number, count in ((4, 3), (5, 2)):
        asyncio.run(questions.ask(ChosenPairs(number, f"pairs {number}", count)))  # type: ignore[arg-type]
        clock.now += 10
    assert (questions.open, questions.asked, questions.pairs) == (5, 5, {4: "pairs 4", 5: "pairs 5"})
    assert heard(
        questions,
        gatherer,
        GathererProgress(0, {4: 3, 5: 2}),
        GathererProgress(1, {4: 1, 5: 2}, last=7),
    ) == [(False, -1), (True, 5)]
    assert (questions.open, questions.seconds, questions.last, questions.changes) == (3, 20.0, 7, 1)
    clock.now += 5
    assert heard(questions, gatherer, GathererProgress(3, {4: 0, 5: 1}, last=9, failed=2)) == [(True, 3)]
    assert (questions.open, questions.seconds, questions.pairs) == (1, 15.0, {5: "pairs 5"})
    assert gatherer.waited == [([4, 5], 0), ([4, 5], 0), ([4, 5], 1)]
    other = SimpleNamespace(seconds=3.0, lost_questions=4, failed_commits=1)
    assert losses([questions, other]) == {"label_seconds": 15.0, "questions_lost": 4.0, "commits_failed": 3.0}  # type: ignore[list-item]


def test_a_restarted_gatherer_is_asked_again_and_lost_pairs_are_no_longer_open(
    questions: OpenQuestions, gatherer: Gatherer
) -> None:
    for number, count in ((4, 3), (5, 2)):
        asyncio.run(questions.ask(ChosenPairs(number, f"pairs {number}", count)))  # type: ignore[arg-type]
    gatherer.lost |= {5, 6}
    # It may have stored something before it died, although it counts from 0 again.
    assert heard(questions, gatherer, GathererProgress(0, {}, unknown=(4, 5))) == [(True, -1)]
    assert gatherer.asked == [(4, "pairs 4"), (5, "pairs 5"), (4, "pairs 4")]
    assert (questions.open, questions.lost_questions, questions.pairs) == (3, 2, {4: "pairs 4"})
    asyncio.run(questions.ask(ChosenPairs(6, "pairs 6", 4)))  # type: ignore[arg-type]
    assert (questions.open, questions.lost_questions, questions.asked) == (3, 6, 5)


def test_a_page_that_nobody_can_reach_is_served_again(gatherer: Gatherer) -> None:
    served: list[int] = []

    async def serve() -> None:
        served.append(1)

    page = OpenQuestions(gatherer, "people", share=1.0, limit=None, serve=serve)
    heard(page, gatherer, GathererProgress(0, {}), GathererProgress(0, {}, serving=False, pages=2, deserted=True))
    assert (len(served), page.pages, page.deserted) == (1, 2, True)


def test_open_pairs_survive_a_checkpoint(questions: OpenQuestions, gatherer: Gatherer) -> None:
    pairs = some_comparisons(3).pairs

    async def lost() -> Pairs:
        raise LOST

    async def kept() -> list[Any]:
        return await as_arrays({3: lost(), 8: Done(pairs)})  # type: ignore[dict-item]

    batches = asyncio.run(kept())
    asyncio.run(questions.ask_again(batches, lambda value: value))  # type: ignore[arg-type, return-value]
    ((number, again),) = gatherer.asked
    assert (number, questions.open) == (8, 3)
    assert again.ids == pairs.ids
    for name, values in vars(pairs.right).items():
        np.testing.assert_array_equal(getattr(again.right, name), values)


class Asked:
    """People who are asked, and leave all questions open."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self.ended = 0
        self.questions = SimpleNamespace(asked=0, open=0, ask=self._ask, listen=self._listen)

    async def _ask(self, pairs: int) -> None:
        self.questions.asked += pairs

    async def _listen(self) -> None:
        await asyncio.sleep(0)
        self.questions.open = max(0, self.questions.open - 1)

    def tell(self, *situation: int) -> None:
        self.told.append(situation)

    def waiting(self, answered: int, wanted: int) -> None:
        self.waits.append((answered, wanted))

    def asks(self) -> None: ...

    def look(self) -> None: ...

    def end_wait(self) -> None:
        self.ended += 1

    def has_answered(self, *situation: int) -> None: ...


@pytest.mark.parametrize("before", [0, 12])
def test_people_get_questions_in_proportion_to_the_first_fragments_that_are_made(before: int) -> None:
    people = Asked()
    source = SimpleNamespace(share=0.0, env_steps=900)
    shares = [0.0, 0.1, 0.1, 0.55, 0.999]
    asked = []

    async def first(room: int, made: Any, pretrained: Any) -> None:
        for share in shares:
            source.share = share
            for _ in range(3):
                await asyncio.sleep(0)
            asked.append(people.questions.asked)

    async def choose(count: int) -> int | None:
        return count if count > 0 else None

    schedule = LabelSchedule(PreferenceSettings(teacher="human", comparisons=100, initial_comparisons=40), 10)
    source.first = first
    ring: Any = SimpleNamespace(
        schedule=schedule, source=source, actors=SimpleNamespace(choose_pairs=choose), version=0, answered=before
    )
    progress = Progress(0.0, 0, 900, 0, no_policy)
    asyncio.run(SynchronousRing._ask_meanwhile(ring, people, progress, before, never))  # type: ignore[arg-type]
    assert asked == [share_of_questions(40 - before, share, share > 0) for share in shares]
    assert asked[-1] == 40 - before - 1
    assert (round(0.55 * 900), 0, before) in people.told


def test_people_are_waited_for_until_all_questions_of_the_round_are_answered() -> None:
    people = Asked()
    people.questions.open = 3

    async def count() -> str:
        return "tally"

    class RingActors:
        gatherers = (people.questions,)

        @property
        def open(self) -> int:
            return int(people.questions.open)

    ring: Any = SimpleNamespace(people=people, actors=RingActors(), _taken=0, version=0, answered=0, _count=count)
    asyncio.run(SynchronousRing._wait_for_answers(ring, 40, never))
    assert people.waits == [(37, 40), (38, 40), (39, 40)]
    assert (ring._tally, people.ended) == ("tally", 1)
    people.questions.open = 3
    asyncio.run(SynchronousRing._wait_for_answers(ring, 40, lambda: True))
    assert len(people.waits) == 3


@pytest.mark.parametrize(
    ("version", "used", "told"), [(0, 3, (3, 8)), (0, 9, (8, 8)), (2, 9, (9, 20)), (2, 25, (20, 20))]
)
def test_the_agent_says_how_many_answers_it_waits_for(version: int, used: int, told: tuple[int, int]) -> None:
    people = Asked()
    people.questions.open = 1
    ring: Any = SimpleNamespace(
        people=people,
        version=version,
        schedule=SimpleNamespace(first_fit=8),
        due=SimpleNamespace(total=20, used=lambda tally: used),
        _tally=None,
    )
    AsynchronousRing._show_wait(ring)
    assert people.waits == [told]
    people.questions.open = 0  # it waits for clips, not for people
    AsynchronousRing._show_wait(ring)
    assert len(people.waits) == 1


def test_answers_are_counted_as_questions_close(questions: OpenQuestions, gatherer: Gatherer) -> None:
    asyncio.run(questions.ask(ChosenPairs(4, "pairs", 5)))  # type: ignore[arg-type]
    gatherer.progress += [GathererProgress(1, {4: 3}), GathererProgress(1, {4: 3}), GathererProgress(2, {4: 0})]
    counted: list[int] = []
    turns = iter([True, True, True, False])

    async def until(ready: Any) -> bool:
        return next(turns)

    async def read() -> None: ...

    ring: Any = SimpleNamespace(
        people=None,
        meters={"answering": SimpleNamespace(busy=lambda if_: nullcontext(counted.append))},
        _stages=SimpleNamespace(until=until, wake=lambda: None),
        _read=read,
        _unfitted=False,
    )
    asyncio.run(AsynchronousRing._listen(ring, questions))
    assert counted == [2, 0, 3]
    assert ring._unfitted


def test_a_round_is_fitted_at_its_share_of_the_training() -> None:
    preferences = PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=4, schedule="constant")
    schedule, fitted = LabelSchedule(preferences), list[Any]()

    async def fit(*how: Any) -> None:
        fitted.append(how)

    ring: Any = SimpleNamespace(
        _tally=Tally(held=8, last=30),
        _skips=Skips(preferences),
        version=1,
        people=None,
        fits=True,
        answered=6,
        skipped=0,
        schedule=schedule,
        fit_schedule=FitSchedule(schedule, RewardModelSettings(updates=20)),
        actors=SimpleNamespace(read=20, fit=fit),
    )
    report = asyncio.run(SynchronousRing._fit(ring, 2))
    assert fitted == [(2 * 20, 30, 0.5)]  # the steps of two rounds
    assert (report.wanted, report.answered, ring.answered, ring.round_number) == (2, 2, 8, 2)
