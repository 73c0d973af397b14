"""Teachers that skip pairs, in both rings, in this process."""

import contextlib
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
def test_a_scripted_teacher_whose_answers_are_all_ties_ends_the_run_with_a_line(
    mode: str, ties: int, tmp_path: Path
) -> None:
    """One decided answer of twelve is enough to go on; the labels are kept either way."""
    preferences = _preferences(mode=mode, comparisons=20, initial_comparisons=12, teacher=Ties(ties))
    ends = pytest.raises(
        SettingError, match=r"^preferences.teacher is .*, and all of its 12 answers are ties, so there is"
    )
    with contextlib.nullcontext() if ties < 12 else ends:
        _run(tmp_path, preferences, rounds=(0,))
    assert sum(row["kind"] == "label" for row in events_in(tmp_path)) == 12
