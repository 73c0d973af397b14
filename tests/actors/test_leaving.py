"""Annotators who leave, in both rings, in this process."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray.settings import PreferenceSettings
from tests.actors.rings import at, events_in, replaced, restored, ring_in

PREFERENCES = PreferenceSettings(
    comparisons=30, initial_comparisons=10, rounds=4, held_out_share=0.2, teacher="population"
)


def _preferences(*annotators: str, **changes: Any) -> PreferenceSettings:
    return replaced(PREFERENCES, annotators=annotators, **changes)


def _advance(ring: Any, rounds: Sequence[int]) -> None:
    for number in rounds:
        ring.advance(at(number / 4, push=0.1 * number, iteration=number))


def _run(folder: Path, preferences: PreferenceSettings) -> tuple[int, int]:
    with ring_in(folder, preferences) as ring:
        ring.begin(200)
        _advance(ring, range(1, 5))
        return ring.answered, ring.rounds_held


def _counts(folder: Path) -> Counter[str]:
    return Counter(row["annotator"] for row in events_in(folder) if row["kind"] == "label")


def test_an_annotator_leaves_over_several_rounds_and_the_others_get_the_pairs(tmp_path: Path) -> None:
    assert _run(tmp_path, _preferences("oracle=4@13", "inverted")) == (30, 5)
    assert _counts(tmp_path) == {"oracle": 13, "inverted": 17}


@pytest.mark.slow
@pytest.mark.parametrize("annotators", [("oracle=4@13", "inverted"), ("human_like@8", "human_like@9", "guessing@5")])
def test_a_restored_ring_goes_on_counting_though_the_store_is_ahead(
    tmp_path: Path, annotators: tuple[str, ...]
) -> None:
    whole, again, elsewhere = restored(
        tmp_path,
        _preferences(*annotators),
        lambda ring: _advance(ring, (3, 4)),
        before=lambda ring: _advance(ring, (1, 2)),
    )
    assert whole == again
    said = [[(row["pair_id"], row["annotator"], row["preference"]) for row in rows] for rows in (whole, elsewhere)]
    assert said[0] == said[1]


@pytest.mark.slow
def test_when_all_have_left_the_run_goes_on_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert _run(tmp_path, _preferences("oracle@9", "inverted@4")) == (13, 5)
    assert _counts(tmp_path) == {"oracle": 9, "inverted": 4}
    said = [record.message for record in caplog.records if "All annotators have left" in record.message]
    assert len(said) == 1
    assert "the labels so far are all" in said[0]


@pytest.mark.slow
def test_when_all_leave_in_the_first_round_the_reward_model_learns_from_their_answers(tmp_path: Path) -> None:
    for mode in ("synchronous", "asynchronous"):
        folder = tmp_path / mode
        with ring_in(folder, _preferences("oracle@3", "inverted@2", mode=mode)) as ring:
            ring.begin(200)
            assert ring.version == 1
            _advance(ring, range(1, 5))
            if mode == "asynchronous":
                assert ring.settle() == (25, 30)
        assert _counts(folder) == {"oracle": 3, "inverted": 2}


def test_a_ring_that_watches_for_ties_ends_its_first_round_too(tmp_path: Path) -> None:
    with ring_in(tmp_path, _preferences("equal@6", equal=1e9)) as ring:
        ring.begin(200)
        assert ring.answered == 6


@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_the_asynchronous_ring_asks_nobody_who_has_left(tmp_path: Path, seconds: float) -> None:
    preferences = _preferences(
        "oracle@13", "inverted", mode="asynchronous", answer_seconds=seconds, max_open_questions=3
    )
    with ring_in(tmp_path, preferences) as ring:
        ring.begin(200)
        _advance(ring, range(1, 5))
        assert ring.settle() == (0, 30)
    assert _counts(tmp_path) == {"oracle": 13, "inverted": 17}


def test_the_asynchronous_ring_goes_on_counting_when_it_is_restored(tmp_path: Path) -> None:
    preferences = _preferences("oracle@9", "inverted@4", mode="asynchronous")
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
