"""The actor around a gatherer: what it stores for whom, what it says of open questions, and what it does when it can't store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_ray.actors import gatherer
from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.gatherer import GathererActor, GathererProgress
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from tests.made_up import some_comparisons

ANSWERS = some_comparisons(6)


class Store(Actor[Any]):
    """Notes what is stored, as (what, annotator, pair ids); event numbers count on. Fails as often as told."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, str, tuple[str, ...]]] = []
        self.fails = 0

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "tally":
            return SimpleNamespace(held=len(self.stored))
        if method == "last_answer":
            return max(10 * k for k, (_, who, ids) in enumerate(self.stored, 1) if (ids, who) == arguments)
        if self.fails:
            self.fails -= 1
            raise OSError("disk full")
        ids = arguments[0].ids if method == "skip" else arguments[0].pairs.ids
        if (method, keywords["annotator"], ids) not in self.stored:
            self.stored.append((method, keywords["annotator"], ids))
        return None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(gatherer, "PATIENCE", 60.0)  # news come at once
    return Store()


def actor(store: Store, ask: Callable[[Any, int, Pairs], None]) -> GathererActor:
    """Its gatherer has `commit` and `skip`, and asks by `ask`."""

    class Own:
        def __init__(self, commit: Any, skip: Any) -> None:
            self.commit, self.skip = commit, skip

        def ask(self, number: int, pairs: Pairs) -> None:
            ask(self, number, pairs)

    return GathererActor(lambda commit, skip, films: Own(commit, skip), lambda: store, lambda value: value)  # type: ignore[arg-type, return-value]


async def settled(of: GathererActor, numbers: list[int], changes: int) -> GathererProgress:
    deadline = time.monotonic() + 20
    while True:
        progress = await asyncio.wait_for(of.wait(numbers, 0), 20)
        if progress.changes == changes and not any(progress.open.values()):
            return progress
        assert time.monotonic() < deadline, progress
        await asyncio.sleep(0.01)


def test_answers_are_stored_by_annotator_and_batches_in_turn(store: Store) -> None:
    order: list[int] = []

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        order.append(number)
        names = ("ada", "ben", "ada") if number == 7 else ()
        own.commit(Comparisons(pairs[:3], np.ones(3, np.float32), names))
        own.skip(pairs[3:], ("ada",) * (len(pairs) - 3))

    async def run() -> GathererProgress:
        of = actor(store, ask)
        for number in (7, 4, 7):  # the second time it is known
            await of.ask(number, ANSWERS.pairs)
        assert (await of.wait([7, 9], 0)).unknown == (9,)
        return await settled(of, [7, 4], 4)

    progress = asyncio.run(run())
    ids = ANSWERS.pairs.ids
    assert order == [7, 4]
    assert store.stored == [
        ("commit", "ada", (ids[0], ids[2])), ("commit", "ben", (ids[1],)), ("skip", "ada", ids[3:]),
        ("commit", "Own", ids[:3]),
    ]  # fmt: skip
    assert (progress.last, progress.failed, progress.open) == (40, 0, {7: 0, 4: 0})


def test_answers_that_are_stored_already_don_t_turn_the_newest_event_back(store: Store) -> None:
    ids = ANSWERS.pairs.ids
    store.stored.append(("commit", "ben", (ids[1],)))

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        names = ("ada", "ben") if number == 1 else ("ben",)
        rows = pairs[:2] if number == 1 else pairs[1:2]
        own.commit(Comparisons(rows, np.ones(len(names), np.float32), names))

    async def run() -> list[int | None]:
        of, last = actor(store, ask), []
        for number in (1, 2):
            await of.ask(number, ANSWERS.pairs)
            last.append((await settled(of, [1, number], number)).last)
        return last

    assert asyncio.run(run()) == [20, 20]


def test_questions_close_with_their_answers_and_the_rest_at_the_batch_s_end(store: Store) -> None:
    seen: list[dict[int, int]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def ask(own: Any, number: int, pairs: Pairs) -> None:
            for row in (0, 1):
                own.commit(Comparisons(pairs[row : row + 1], np.ones(1, np.float32), ("ada",)))
                seen.append(asyncio.run_coroutine_threadsafe(of.wait([1], row), loop).result(20).open)

        of = actor(store, ask)
        await of.ask(1, ANSWERS.pairs)
        await settled(of, [1], 2)

    asyncio.run(run())
    assert seen == [{1: 5}, {1: 4}]


def test_answers_that_can_t_be_stored_are_kept_until_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatherer, "COMMIT_AGAIN_AFTER", 0.0)
    store.fails = 3

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        own.commit(Comparisons(pairs, np.ones(6, np.float32), ("ada",) * 6))

    async def run() -> GathererProgress:
        of = actor(store, ask)
        await of.ask(1, ANSWERS.pairs)
        return await settled(of, [1], 1)

    progress = asyncio.run(run())
    assert (progress.failed, progress.changes, len(store.stored)) == (3, 1, 1)


def test_who_waits_hears_of_each_news_at_once_and_without_any_after_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, again, end = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(gatherer, "time", SimpleNamespace(sleep=lambda seconds: again.wait(20)))
    store.fails = 1

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        begin.wait(20)
        own.commit(Comparisons(pairs[:2], np.ones(2, np.float32), ("ada",) * 2))
        end.wait(20)

    async def run() -> None:
        of = actor(store, ask)

        async def news(changes: int, event: threading.Event, *numbers: int) -> GathererProgress:
            waiting = asyncio.ensure_future(of.wait(numbers, changes))
            await asyncio.sleep(0)
            event.set()
            return await asyncio.wait_for(waiting, 10)

        await of.ask(1, ANSWERS.pairs)
        for changes, event, failed, left in ((0, begin, 1, 6), (0, again, 1, 4), (1, end, 1, 0)):
            progress = await news(changes, event, 1)
            assert (progress.failed, progress.open) == (failed, {1: left})
        await news(0, end, 1)  # there was news before
        await news(1, end, 9)  # nobody knows this batch
        monkeypatch.setattr(gatherer, "PATIENCE", 0.05)
        began = time.monotonic()
        await news(1, end, 1)
        assert time.monotonic() - began >= 0.05

    asyncio.run(run())


def test_a_gatherer_that_answers_nothing_at_first_is_named(store: Store) -> None:
    async def run() -> None:
        of = actor(store, lambda own, number, pairs: None)
        await of.ask(1, ANSWERS.pairs)
        try:
            await settled(of, [1], 0)
        except SettingError:
            await asyncio.wait_for(of.wait([1], 0), 10)  # says so again, at once

    with pytest.raises(SettingError, match="Own returned from the first 6 pairs without an answer"):
        asyncio.run(run())
    store.stored.append(("commit", "ada", ()))  # with labels from before, it may
    asyncio.run(run())


def test_nothing_is_stored_after_the_end(store: Store) -> None:
    store.stored.append(("commit", "ada", ()))

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        of.end()
        own.commit(Comparisons(pairs, np.ones(6, np.float32), ("ada",) * 6))

    of = actor(store, ask)

    async def run() -> GathererProgress:
        await of.ask(1, ANSWERS.pairs)
        await of.ask(2, ANSWERS.pairs)
        return await of.wait([1], 0)

    assert asyncio.run(run()).changes == 0
    assert len(store.stored) == 1
