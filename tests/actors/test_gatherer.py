"""Gatherers that answer nothing, end, restart or lose what they were asked; without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.gatherer import ChosenPairs, GathererActor, GathererProgress, OpenQuestions, as_arrays
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from tests.actors.test_fragment_source import Done
from tests.made_up import some_comparisons

ANSWERS = some_comparisons(6)
LOST = ray.exceptions.ObjectLostError("00", "", "")


class Store(Actor[Any]):
    """Holds so many answers."""

    held = 0

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "tally":
            return SimpleNamespace(held=self.held)
        self.held += method == "commit"
        return 0


def actor(store: Store, ask: Callable[[Any, int, Pairs], None]) -> GathererActor:
    """Its gatherer has `commit`, and asks by `ask`."""

    class Own:
        def __init__(self, commit: Any) -> None:
            self.commit = commit

        def ask(self, number: int, pairs: Pairs) -> None:
            ask(self, number, pairs)

    return GathererActor(lambda commit, skip, films: Own(commit), lambda: store, lambda value: value)  # type: ignore[arg-type, return-value]


def test_a_gatherer_that_answers_nothing_at_first_is_named() -> None:
    store = Store()

    async def run() -> GathererProgress:
        of = actor(store, lambda own, number, pairs: None)
        await of.ask(1, ANSWERS.pairs)
        while (progress := await of.wait([1], 0)).open[1]:
            pass
        return progress

    with pytest.raises(SettingError, match="Own returned from the first 6 pairs without an answer"):
        asyncio.run(run())
    store.held = 1  # with labels from before, it may
    assert asyncio.run(run()).open == {1: 0}


def test_nothing_is_stored_after_the_end() -> None:
    store = Store()
    store.held = 1

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        of.end()
        own.commit(Comparisons(pairs, np.ones(6, np.float32), ("ada",) * 6))

    of = actor(store, ask)

    async def run() -> GathererProgress:
        await of.ask(1, ANSWERS.pairs)
        await of.ask(2, ANSWERS.pairs)
        return await of.wait([1], 0)

    assert asyncio.run(run()).changes == 0
    assert store.held == 1


class Gatherer(Actor[Any]):
    """Answers with `progress`; its pairs may be lost."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.progress = GathererProgress(0, {})
        self.lost: set[int] = set()

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "wait":
            return Done(self.progress)
        if arguments[0] in self.lost:
            raise LOST
        self.asked.append(arguments)
        return Done(None)


def test_a_restarted_gatherer_is_asked_again_and_lost_pairs_are_no_longer_open() -> None:
    gatherer = Gatherer()
    questions = OpenQuestions(gatherer, "answering", share=1.0, limit=None)
    for number, count in ((4, 3), (5, 2)):
        asyncio.run(questions.ask(ChosenPairs(number, f"pairs {number}", count)))  # type: ignore[arg-type]
    gatherer.lost |= {5, 6}
    gatherer.progress = GathererProgress(0, {}, unknown=(4, 5))
    assert asyncio.run(questions.listen())  # it may have stored something before it died
    assert gatherer.asked == [(4, "pairs 4"), (5, "pairs 5"), (4, "pairs 4")]
    assert (questions.open, questions.lost_questions, questions.pairs) == (3, 2, {4: "pairs 4"})
    asyncio.run(questions.ask(ChosenPairs(6, "pairs 6", 4)))  # type: ignore[arg-type]
    assert (questions.open, questions.lost_questions, questions.asked) == (3, 6, 5)


def test_open_pairs_survive_a_checkpoint() -> None:
    gatherer, pairs = Gatherer(), some_comparisons(3).pairs
    questions = OpenQuestions(gatherer, "answering", share=1.0, limit=None)

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
