import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import name_of
from rlhf_ray.queries.gatherers import ScriptedGatherer, answer_waits
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import Answers
from tests.made_up import joined, same_fragments, some_comparisons

PAIRS = some_comparisons(200).pairs


def _answers(settings: PreferenceSettings, number: int = 0, seed: int = 0) -> Comparisons:
    committed: list[Comparisons] = []
    ScriptedGatherer(committed.append, settings, seed).ask(number, PAIRS)
    return joined(committed)


def test_the_oracle_answers_by_true_return_and_commits_its_answers() -> None:
    answers = _answers(PreferenceSettings(teacher="oracle"))
    assert same_fragments(answers.pairs.left, PAIRS.left)
    assert answers.pairs.ids == PAIRS.ids
    assert set(answers.annotators) == {"oracle"}
    better = PAIRS.left.returns() > PAIRS.right.returns()
    assert np.array_equal(answers.preferences, better.astype(np.float32))


def test_asking_again_gives_the_same_answers_even_after_a_restart() -> None:
    settings = PreferenceSettings(teacher="stochastic", rationality=0.1)
    first, second, again = (_answers(settings, number).preferences for number in (1, 2, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, _answers(settings, 1, seed=1).preferences)


def test_a_slow_teacher_commits_each_answer_when_it_is_there_and_answers_as_a_quick_one_would() -> None:
    committed: list[tuple[float, int]] = []
    started = time.monotonic()

    def commit(answers: Comparisons) -> None:
        committed.append((time.monotonic() - started, len(answers)))

    few = Comparisons(PAIRS, np.zeros(200, np.float32))[:4].pairs
    ScriptedGatherer(commit, PreferenceSettings(answer_seconds=0.05), 0).ask(0, few)
    assert [count for _, count in committed] == [1] * 4
    assert all(at >= 0.05 * (i + 1) for i, (at, _) in enumerate(committed))
    slow = _answers(PreferenceSettings(teacher="stochastic", rationality=0.1, answer_seconds=1e-6), 3)
    assert np.array_equal(
        slow.preferences, _answers(PreferenceSettings(teacher="stochastic", rationality=0.1), 3).preferences
    )


def test_the_time_of_an_answer_is_log_normal_with_the_mean_of_the_settings() -> None:
    settings = PreferenceSettings(answer_seconds=4.0, answer_spread=0.8)
    n = 200_000
    waits = answer_waits(settings, n, np.random.default_rng(0))
    assert (waits > 0).all()
    assert abs(waits.mean() - 4.0) < 4 * 4.0 * np.sqrt((np.exp(0.64) - 1) / n)
    logs = np.log(waits)
    assert abs(logs.mean() - (np.log(4.0) - 0.32)) < 4 * 0.8 / np.sqrt(n)
    assert abs(logs.std() - 0.8) < 4 * 0.8 / np.sqrt(2 * n)
    same = answer_waits(PreferenceSettings(answer_seconds=4.0), 9, np.random.default_rng(0))
    assert np.array_equal(same, np.full(9, 4.0))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_pairs_that_nobody_is_there_for_are_neither_answered_nor_skipped(mode: Any) -> None:
    committed: list[Comparisons] = []
    skipped: list[str] = []
    settings = PreferenceSettings(teacher="population", annotators=("oracle@5", "guessing@2"), mode=mode)
    gatherer = ScriptedGatherer(
        committed.append, settings, 0, lambda pairs, names: skipped.extend([*pairs.ids, *names])
    )
    gatherer.ask(0, dataclasses.replace(PAIRS[:20], answered={"oracle": 1}))
    assert Counter(joined(committed).annotators) == {"oracle": 4, "guessing": 2}
    assert gatherer.deserted
    assert not skipped
    # Pairs that were drawn before those answers were counted: the asynchronous gatherer knows its own.
    gatherer.ask(1, dataclasses.replace(PAIRS[20:40], answered={"oracle": 1}))
    again = {"oracle": 4, "guessing": 2} if mode == "synchronous" else {}
    assert Counter(joined(committed).annotators) == Counter({"oracle": 4, "guessing": 2}) + Counter(again)


class _Panel:
    """Two annotators, in turn; every third pair is skipped."""

    name = "panel"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Answers:
        number = np.arange(len(pairs))
        said = np.where(number % 3 == 0, np.nan, number % 2).astype(np.float32)
        return Answers(said, tuple("ab"[i % 2] for i in number))


@pytest.mark.parametrize("seconds", [0.0, 1e-6])
def test_skips_and_several_annotators_are_stored_as_such(seconds: float) -> None:
    committed: list[Comparisons] = []
    skipped: list[tuple[str, str]] = []

    def skip(pairs: Pairs, annotators: Sequence[str]) -> None:
        skipped.extend(zip(pairs.ids, annotators, strict=True))

    panel: Any = _Panel()
    settings = PreferenceSettings(teacher=panel, answer_seconds=seconds)
    ScriptedGatherer(committed.append, settings, 0, skip).ask(0, PAIRS[:12])
    answers = joined(committed)
    kept = [i for i in range(12) if i % 3]
    assert answers.pairs.ids == tuple(PAIRS.ids[i] for i in kept)
    assert answers.annotators == tuple("ab"[i % 2] for i in kept)
    assert answers.preferences.tolist() == [i % 2 for i in kept]
    assert skipped == [(PAIRS.ids[i], "ab"[i % 2]) for i in range(0, 12, 3)]


@pytest.mark.parametrize(
    "said",
    [
        np.array([0.5, 2.0]),
        np.array([[0.5, 0.5]]),
        Answers(np.zeros(2, np.float32), ("a",)),
        None,
        ["left", "right"],
        ["1", "0"],
        [[1, 0], 1],
    ],
)
def test_answers_that_are_none_are_one_line(said: Any) -> None:
    class Rude:
        name = "rude"

        def answer(self, pairs: Pairs, rng: np.random.Generator) -> Any:
            return said

    rude: Any = Rude()
    with pytest.raises(SettingError, match=r"teacher is 'rude', and for 2 pairs it answered .*NaN to skip it"):
        ScriptedGatherer(lambda answers: None, PreferenceSettings(teacher=rude), 0).ask(0, PAIRS[:2])


class Rescaling:
    """A teacher that works in place."""

    name = "rescaling"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Any:
        for side in (pairs.left, pairs.right):
            side.rewards[:] -= 100.0
            side.observations[:] = 0
            side.actions[:] = 0
        return (pairs.left.returns() > pairs.right.returns()).astype(np.float32)


def test_a_teacher_that_changes_what_it_is_shown_changes_no_stored_pair() -> None:
    before = some_comparisons(200).pairs
    answers = _answers(PreferenceSettings(teacher=name_of(Rescaling)))
    assert same_fragments(answers.pairs.left, before.left)
    assert same_fragments(PAIRS.right, before.right)
    assert np.array_equal(answers.preferences, before.left.returns() > before.right.returns())
