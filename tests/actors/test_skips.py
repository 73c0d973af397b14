"""Teachers that skip pairs and annotators who leave, in both rings, in this process."""

import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.teachers import Oracle
from tests.actors.rings import at, events_in, replaced, restored, ring_in
from tests.made_up import labels_in, wait_for


class Undecided:
    """Skips a share of the pairs; answers the others like the oracle. Every pair of policies newer than ``until`` is skipped."""

    name = "undecided"

    def __init__(self, share: float, until: int = 1000):
        self.share, self.until = share, until

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        answers = Oracle().answer(pairs, rng)
        late = np.maximum(pairs.left.policy_versions, pairs.right.policy_versions) > self.until
        answers[(rng.random(len(pairs)) < self.share) | late] = np.nan
        return answers


def _preferences(share: float = 0.5, **changes: Any) -> PreferenceSettings:
    teacher: Any = Undecided(share)
    chosen = PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=2, teacher=teacher, held_out_share=0.2)
    return replaced(chosen, **changes)


def _run(folder: Path, preferences: PreferenceSettings, rounds: tuple[int, ...] = (0, 1, 2), **arguments: Any) -> Any:
    with ring_in(folder, preferences, **arguments) as ring:
        if 0 in rounds:
            ring.begin(200)
        for number in rounds[1:] if 0 in rounds else rounds:
            ring.advance(at(number / 2, push=0.1 * number, iteration=number))
        return ring.answered, ring.metrics()["skipped"], ring.rounds_held


def test_skipped_pairs_are_stored_replaced_and_neither_trained_on_nor_asked_again(tmp_path: Path) -> None:
    answered, skipped, _ = _run(tmp_path, _preferences())
    events = events_in(tmp_path)
    assert answered == 10
    assert skipped == sum(row["kind"] == "skip" for row in events) > 0
    assert len(events) == 10 + skipped == len({row["pair_id"] for row in events})
    assert all(row["preference"] is None and row["annotator"] == "undecided" for row in events if row["kind"] == "skip")
    learned = labels_in(tmp_path / "store")
    assert set(learned.pairs.ids) == {row["pair_id"] for row in events if row["kind"] == "label"}


def test_skips_use_up_the_budget_if_they_are_to(tmp_path: Path) -> None:
    answered, skipped, _ = _run(tmp_path, _preferences(skips_count=True))
    assert skipped > 0
    assert answered + skipped == 10


def test_a_restored_ring_repeats_its_skips_bit_for_bit_though_the_store_is_ahead(tmp_path: Path) -> None:
    def advance(ring: Any) -> None:
        for number in (1, 2):
            ring.advance(at(number / 2, push=0.1 * number, iteration=number))

    whole, again, elsewhere = restored(tmp_path, _preferences(), advance, lambda ring: None)
    assert whole == again
    kinds = "".join(row["kind"][0] for row in whole)  # a skip or a label
    assert "s" in kinds.split("l", 6)[-1]  # after those of the checkpoint
    assert [(row["pair_id"], row["kind"]) for row in whole] == [(row["pair_id"], row["kind"]) for row in elsewhere]


def test_a_teacher_that_skips_everything_ends_the_run_with_a_line_that_says_so(tmp_path: Path) -> None:
    for mode in ("synchronous", "asynchronous"):
        for counts in (False, True):
            preferences = _preferences(1.0, mode=mode, skips_count=counts)
            folder = tmp_path / f"{mode}{counts}"
            with (
                ring_in(folder, preferences) as ring,
                pytest.raises(SettingError, match=r"which skipped all of the first"),
            ):
                ring.begin(200)
            assert len(events_in(folder)) < 250


def test_few_fragments_and_a_teacher_that_skips_all_their_pairs_end_the_run_too(tmp_path: Path) -> None:
    few = FragmentSettings(length=5, pool=4, initial_env_steps=40)
    for mode in ("synchronous", "asynchronous"):
        preferences = _preferences(1.0, mode=mode, comparisons=3, initial_comparisons=2)
        with (
            ring_in(tmp_path / mode, preferences, fragments=few) as ring,
            pytest.raises(SettingError, match="skipped all"),
        ):
            ring.begin(40)


def test_a_teacher_that_begins_to_skip_everything_costs_labels_but_does_not_hold_up_the_run(tmp_path: Path) -> None:
    teacher: Any = Undecided(0.0, until=-1)
    fragments = FragmentSettings(length=5, pool=10, initial_env_steps=200, exploration_env_steps=60)
    answered, skipped, rounds = _run(tmp_path, _preferences(teacher=teacher), fragments=fragments)
    assert 6 <= answered < 10
    assert 0 < skipped <= 2 * 101
    assert rounds == 3


def test_the_asynchronous_ring_replaces_skipped_pairs_and_counts_them(tmp_path: Path) -> None:
    for counts in (False, True):
        folder = tmp_path / str(counts)
        with ring_in(folder, _preferences(mode="asynchronous", skips_count=counts)) as ring:
            ring.begin(200)
            ring.advance(at(1.0, 1000))
            missing, due = ring.settle()
            assert (missing, due) == (0, 10)
            skipped = ring.metrics()["skipped"]
            assert skipped > 0
            assert ring.answered + (skipped if counts else 0) == 10
            wait_for(lambda ring=ring: ring.rounds_held == 3)
        events = events_in(folder)
        assert len(events) == len({row["pair_id"] for row in events}) == ring.answered + skipped


class Ties:
    """Answers the first ``ties`` pairs "equally good", the others like the oracle."""

    name = "ties"

    def __init__(self, ties: int):
        self.ties = ties

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        answers = Oracle().answer(pairs, rng)
        answers[: self.ties] = 0.5
        self.ties = max(0, self.ties - len(pairs))
        return answers


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("ties", [11, 12])
def test_a_scripted_teacher_whose_answers_are_all_ties_ends_the_run_with_a_line(mode, ties, tmp_path):
    """One decided answer of twelve is enough to go on; the labels are kept either way."""
    preferences = _preferences(mode=mode, comparisons=20, initial_comparisons=12, teacher=Ties(ties))
    ends = pytest.raises(
        SettingError, match=r"^preferences.teacher is .*, and all of its 12 answers are ties, so there is"
    )
    with contextlib.nullcontext() if ties < 12 else ends:
        _run(tmp_path, preferences, rounds=(0,))
    assert sum(row["kind"] == "label" for row in events_in(tmp_path)) == 12


POPULATION = PreferenceSettings(
    comparisons=30, initial_comparisons=10, rounds=4, held_out_share=0.2, teacher="population"
)


def _leaving(*annotators: str, **changes: Any) -> PreferenceSettings:
    return replaced(POPULATION, annotators=annotators, **changes)


def _advance(ring: Any, rounds: Sequence[int]) -> None:
    for number in rounds:
        ring.advance(at(number / 4, push=0.1 * number, iteration=number))


def _all_rounds(folder: Path, preferences: PreferenceSettings) -> tuple[int, int]:
    with ring_in(folder, preferences) as ring:
        ring.begin(200)
        _advance(ring, range(1, 5))
        return ring.answered, ring.rounds_held


def _counts(folder: Path) -> Counter[str]:
    return Counter(row["annotator"] for row in events_in(folder) if row["kind"] == "label")


def test_an_annotator_leaves_over_several_rounds_and_the_others_get_the_pairs(tmp_path: Path) -> None:
    assert _all_rounds(tmp_path, _leaving("oracle=4@13", "inverted")) == (30, 5)
    assert _counts(tmp_path) == {"oracle": 13, "inverted": 17}


@pytest.mark.slow
@pytest.mark.parametrize("annotators", [("oracle=4@13", "inverted"), ("human_like@8", "human_like@9", "guessing@5")])
def test_a_restored_ring_goes_on_counting_though_the_store_is_ahead(tmp_path, annotators):
    whole, again, elsewhere = restored(
        tmp_path, _leaving(*annotators), lambda ring: _advance(ring, (3, 4)), before=lambda ring: _advance(ring, (1, 2))
    )
    assert whole == again
    said = [[(row["pair_id"], row["annotator"], row["preference"]) for row in rows] for rows in (whole, elsewhere)]
    assert said[0] == said[1]


@pytest.mark.slow
def test_when_all_have_left_the_run_goes_on_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert _all_rounds(tmp_path, _leaving("oracle@9", "inverted@4")) == (13, 5)
    assert _counts(tmp_path) == {"oracle": 9, "inverted": 4}
    said = [record.message for record in caplog.records if "All annotators have left" in record.message]
    assert len(said) == 1
    assert "the labels so far are all" in said[0]


@pytest.mark.slow
def test_when_all_leave_in_the_first_round_the_reward_model_learns_from_their_answers(tmp_path: Path) -> None:
    for mode in ("synchronous", "asynchronous"):
        folder = tmp_path / mode
        with ring_in(folder, _leaving("oracle@3", "inverted@2", mode=mode)) as ring:
            ring.begin(200)
            assert ring.version == 1
            _advance(ring, range(1, 5))
            if mode == "asynchronous":
                assert ring.settle() == (25, 30)
        assert _counts(folder) == {"oracle": 3, "inverted": 2}


def test_a_ring_that_watches_for_ties_ends_its_first_round_too(tmp_path: Path) -> None:
    with ring_in(tmp_path, _leaving("equal@6", equal=1e9)) as ring:
        ring.begin(200)
        assert ring.answered == 6


@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_the_asynchronous_ring_asks_nobody_who_has_left(tmp_path: Path, seconds: float) -> None:
    preferences = _leaving("oracle@13", "inverted", mode="asynchronous", answer_seconds=seconds, max_open_questions=3)
    with ring_in(tmp_path, preferences) as ring:
        ring.begin(200)
        _advance(ring, range(1, 5))
        assert ring.settle() == (0, 30)
    assert _counts(tmp_path) == {"oracle": 13, "inverted": 17}


def test_the_asynchronous_ring_goes_on_counting_when_it_is_restored(tmp_path: Path) -> None:
    preferences = _leaving("oracle@9", "inverted@4", mode="asynchronous")
    (tmp_path / "checkpoint").mkdir()
    with ring_in(tmp_path / "one", preferences) as ring:
        ring.begin(200)
        ring.save(tmp_path / "checkpoint")
    with ring_in(tmp_path / "two", preferences) as ring:
        ring.load(tmp_path / "checkpoint")
        _advance(ring, range(1, 5))
        ring.settle()
        assert ring.answered == 13
    assert _counts(tmp_path / "two") == {"oracle": 9, "inverted": 4}
