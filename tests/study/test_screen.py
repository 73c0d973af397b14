"""The first screen: strength, order, merging, lists, and that it stays within its words and numbers."""

from __future__ import annotations

import random

import pytest

from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.screen import (
    AROUND,
    NUMBERS,
    NUMBERS_AROUND,
    WORDS,
    Line,
    count_numbers,
    count_words,
    first_screen,
    strength,
)
from rlhf_ray.study.section import Check, Section, Statement
from rlhf_ray.study.verdict import Relations, reconcile

RELATIONS = Relations(
    (("s.first",),), {}, ("IGNORES", "FOUND NO", "NOT ASKED", "BEWARE"), {"gone": "what it costs (--more)"}
)


def screen(*statements: Statement, checks: tuple[Check, ...] = (), heading: str = "it"):  # type: ignore[no-untyped-def]
    sections = [Section("s", "s", statements, checks), Section("gone", "gone", skipped="There is nothing.")]
    return first_screen(heading, reconcile(sections, ("uses",), relations=RELATIONS), sections, RELATIONS)


def test_strength_is_that_of_the_near_end_of_the_interval_beyond_the_control() -> None:
    assert strength((0.5, 0.9)) == "strong"
    assert strength((0.49, 0.9)) == strength((0.1, 0.2)) == "moderate"
    assert strength((0.09, 0.9)) == "weak"
    assert strength((-0.9, -0.6), 0.59) == "strong"
    assert strength((-0.9, -0.6), 0.6) == "weak"
    assert strength((-0.1, 0.9)) == "weak"
    assert strength(MeanEstimate(0.9, None, None)) == "weak"
    assert strength(MeanEstimate(-0.4, -0.5, -0.3), -0.2) == "moderate"


def test_lines_are_one_for_each_subject_the_most_important_first() -> None:
    found = screen(
        Statement("uses", "1", 1.0, "x", "s.a", line="USES x weakly", strength="weak"),
        Statement("uses", "2", 0.5, "y", "s.first", line="NEEDS y", figure="10 → 5", strength="moderate"),
        Statement("uses", "3", 0.1, "x", "s.b", line="USES x", strength="strong"),
        Statement("uses", "4", 9.0, "x; z", "s.c", line="USES x and z", strength="strong"),
        Statement("holds", "5", 0.1, "v", "s.h", line="v", list="IGNORES", stance="no"),
        Statement("holds", "6", 0.1, "x", "s.h", line="x", list="IGNORES"),
        checks=(Check("lag", True, absent="delay"), Check("other", False, says="no")),
    )
    assert [line.text for line in found.causes] == ["NEEDS y", "USES x and z"]
    assert {name: [line.text for line in lines] for name, lines in found.lists.items()} == {
        "IGNORES": ["v"],
        "FOUND NO": ["delay"],
        "NOT ASKED": ["what it costs (--more)"],
    }
    assert found.more == 0
    assert found.text.splitlines()[:3] == ["it", "1 NEEDS y · moderate", "    10 → 5"]


@pytest.mark.parametrize(
    ("text", "verdict", "rest"),
    [
        ("REMEMBERS the cue", "REMEMBERS", "the cue"),
        ("LOOKS AT Cart position", "LOOKS AT", "Cart position"),
        ("SHORTCUT: a, b", "SHORTCUT", ": a, b"),
        ("CONSTANT", "CONSTANT", ""),
        ("plain", "", "plain"),
    ],
)
def test_a_line_begins_with_its_verdict(text: str, verdict: str, rest: str) -> None:
    assert (Line(text).verdict, Line(text).rest) == (verdict, rest)


@pytest.mark.parametrize("seed", range(5))
def test_no_screen_is_longer_than_a_reader_has_time_for(seed: int) -> None:
    rng = random.Random(seed)
    statements = [
        Statement(
            "uses",
            str(number),
            rng.random(),
            f"subject {number}",
            "s.any",
            line=f"USES {'word ' * rng.randint(1, 15)}{number}",
            figure=f"{rng.random():.2f} [{rng.random():.2f}, {rng.random():.2f}] · random {rng.random():.2f}",
            list=rng.choice(["", "", "IGNORES", "BEWARE"]),
        )
        for number in range(30)
    ]
    found = screen(*statements)
    assert count_words(found.text) <= WORDS - AROUND
    assert count_numbers(found.text) <= NUMBERS - NUMBERS_AROUND
    shown = len(found.causes) + sum(map(len, found.lists.values()))
    assert found.more == 31 - shown
    assert found.causes


def test_words_and_numbers_are_counted_as_a_reader_would() -> None:
    assert count_words("taken away: 10.0 → 5.0 [−5.2, −4.8] · random 9.9") == 3
    assert count_numbers("taken away: 10.0 → 5.0 [−5.2, −4.8] · random 1,024") == 5


def test_where_there_is_no_room_for_all_a_list_gives_way_before_the_second_cause() -> None:
    figure = "0.10 [0.05, 0.15] · random 0.01 [0.00, 0.02]"  # with its name and place, eight numbers: two causes leave one of 17
    causes = [
        Statement("uses", f"{n}", 9.0 - n, f"s{n}", "s.first", line=f"USES number {n}", figure=figure) for n in range(2)
    ]
    lists = [
        Statement("holds", f"of {name}", 0.1, name, "s.h", line="from step 1 on", list=name, stance="no")
        for name in ("IGNORES", "BEWARE")
    ]
    found = screen(*lists, *causes, checks=(Check("lag", True, absent="delay"), Check("other", False, says="no")))
    assert [line.text for line in found.causes] == ["USES number 0", "USES number 1"]
    assert list(found.lists) == ["FOUND NO", "NOT ASKED", "BEWARE"]
    assert (found.more, found.besides) == (1, "1 more, 1 failed check")
