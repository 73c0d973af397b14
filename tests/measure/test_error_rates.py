"""Error rates in words, and their metrics."""

from dataclasses import replace
from typing import Any

import pytest

from rlhf_ray.data.metrics import metric_of
from rlhf_ray.measure.error_rates import UNSEEN, Drift, ErrorRate, newest_rates, opposed

SOME = ErrorRate(0.12, 0.08, 0.17, 200)


@pytest.mark.parametrize(
    ("rate", "kind", "said"),
    [
        (SOME, "some", "about 12 % of the answers look wrong (8–17 %)"),
        (ErrorRate(0.01, 0.0, 0.03, 200), "few", f"few or none of the answers look wrong (0–3 %); {UNSEEN}"),
        (ErrorRate(0.09, 0.0, 0.31, 6), "unknown", "it is unclear how many of the answers are wrong (0–31 %)"),
        (
            ErrorRate(0.48, 0.36, 0.6, 60, 0.4),
            "guesses",
            "about 48 % of the answers look wrong (36–60 %), as if guessed",
        ),
        (
            ErrorRate(0.57, 0.52, 0.62, 900, 0.99),
            "guesses",
            "about 57 % of the answers look wrong (52–62 %), as if guessed",
        ),
        (
            ErrorRate(0.85, 0.7, 0.95, 40, 0.999),
            "inverted",
            "about 85 % of the answers look wrong (70–95 %), as if inverted",
        ),
        (
            ErrorRate(0.85, 0.7, 0.95, 40, 0.999, fits=1),
            "unknown",
            "it is unclear how many of the answers are wrong (70–95 %)",
        ),
        (ErrorRate(0.48, 0.05, 0.9, 3, 0.45), "unknown", "it is unclear how many of the answers are wrong (5–90 %)"),
        (ErrorRate(0.36, 0.31, 0.4, 400), "some", "about 36 % of the answers look wrong (31–40 %)"),
    ],
)
def test_one_place_decides_what_a_rate_says_and_in_which_words(rate: ErrorRate, kind: str, said: str) -> None:
    assert rate.kind == kind
    assert rate.sentence("ada").replace("ada's", "the") == said


def test_a_rate_is_told_with_its_interval() -> None:
    assert str(SOME) == "0.12 (0.08–0.17)"
    assert str(ErrorRate(0.85, 0.7, 0.95, 40, 0.999)) == "0.85 (0.70–0.95, inverted)"
    assert SOME.sentence("ada") == "about 12 % of ada's answers look wrong (8–17 %)"
    assert (
        ErrorRate(0.48, 0.36, 0.6, 60, 0.4).sentence() == "about 48 % of the answers look wrong (36–60 %)"
    )  # of several


def test_rates_come_back_from_the_newest_metrics_that_have_them() -> None:
    inverted = ErrorRate(0.85, 0.7, 0.95, 40, 0.999)
    rows: list[dict[str, Any]] = [
        SOME.metrics() | SOME.metrics("cora"),
        SOME.metrics() | inverted.metrics("a/b") | SOME.metrics("ada"),
        {"loss": 1.0, "error_rate/ada": None},
        {"error_rate/ada": 0.3},  # of an earlier version, without an interval
    ]
    assert newest_rates(rows) == (SOME, {"a/b": inverted, "ada": SOME})
    assert newest_rates(rows[:1]) == (SOME, {"cora": SOME})
    assert newest_rates(rows[2:]) == (None, {})


def test_each_metric_is_declared() -> None:
    drift = Drift(SOME, SOME, 0.5)
    for name in SOME.metrics() | SOME.metrics("ada") | drift.metrics("ada"):
        assert metric_of(name) is not None, name
    assert metric_of("error_rate_first") is None  # only of annotators


def test_near_equal_sides_are_two_camps_and_a_minority_is_not() -> None:
    def sides(against: int, others: int) -> dict[str, ErrorRate]:
        return {"ada": ErrorRate(0.93, 0.85, 1.0, against, 0.999), "ben": replace(SOME, answers=others)}

    assert opposed(sides(94, 106)) == ["ada"]
    assert opposed(sides(40, 60)) == []  # two of five
    assert opposed({"ben": SOME, "cora": SOME}) == opposed({}) == []
