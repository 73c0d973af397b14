"""The verdict: what explains what, what wins where two disagree, and the checker that reads the twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.planted_causes.contradictions import contradictions
from rlhf_ray.study.page import write_page
from rlhf_ray.study.screen import first_screen
from rlhf_ray.study.section import Check, Section, Stance, Statement
from rlhf_ray.study.verdict import Relations, StudyVerdict, reconcile
from tests.study.looks import LOOK

RELATIONS = Relations(
    (("a.flaw",), ("a.good", "b.*")),
    {"a.flaw": ("b.bad", "a.check"), "a.good": ("b.held@",)},
    ("IGNORES", "FOUND NO", "NOT ASKED"),
    {"skipped": "what it costs"},
)


def say(key: str, about: str = "", stance: Stance = "", weight: float = 0.0, **values: str) -> Statement:
    """Return a statement whose line and text are its key and subject."""
    return Statement("rewards", f"{key} {about}", weight, about, key, stance, f"{key.upper()} {about}", **values)  # type: ignore[arg-type]


def put_together(*statements: Statement, checks: tuple[Check, ...] = ()) -> StudyVerdict:
    names = sorted({statement.key.split(".")[0] for statement in statements} | {"a"})
    of = {name: [each for each in statements if each.key.startswith(name)] for name in names}
    sections = [Section(name, name, of[name], checks if name == "a" else ()) for name in names]
    return reconcile(sections, ("rewards",), relations=RELATIONS)


def held(verdict: StudyVerdict) -> set[str]:
    return {f"{statement.key} {statement.about}".strip() for _, statement in verdict.ranked}


def test_a_statement_sets_aside_what_it_explains_and_the_failed_check_too() -> None:
    check = Check("orders", False, says="it does not", key="a.check")
    verdict = put_together(say("b.bad", "x"), say("a.flaw"), checks=(check,))
    assert held(verdict) == {"a.flaw"}
    assert [(told.key, told.because) for told in verdict.explained] == [("b.bad", "a.flaw "), ("a.check", "a.flaw ")]
    assert not verdict.failed
    assert verdict.because("b", "b.bad x") == "a.flaw "
    assert put_together(say("b.bad", "x"), checks=(check,)).failed  # nothing explains it


def test_a_pattern_with_at_explains_only_what_is_about_the_same_thing() -> None:
    verdict = put_together(say("a.good", "x"), say("b.held", "x"), say("b.held", "y"), say("b.held", "x; y"))
    assert held(verdict) == {"a.good x", "b.held y"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_that_disagree_the_one_of_the_earlier_group_holds(order: tuple[int, int]) -> None:
    pair = (say("a.flaw", "x", "no"), say("b.other", "x; y", "yes"))
    verdict = put_together(*(pair[i] for i in order))
    assert held(verdict) == {"a.flaw x"}
    assert held(put_together(say("a.flaw", "x", "no"), say("b.other", "y", "yes"))) == {"a.flaw x", "b.other y"}
    assert held(put_together(say("a.flaw", "x", "no"), say("b.other", "x"))) == {"a.flaw x", "b.other x"}


def report(folder: Path, verdict: StudyVerdict, sections: list[Section]) -> dict[str, object]:
    """Write the page and read its twin."""
    write_page(LOOK, folder, {}, verdict, sections, first_screen("it", verdict, sections, RELATIONS))
    return dict(json.loads((folder / "report.json").read_text()))


def test_the_checker_finds_what_disagrees_and_nothing_else(tmp_path: Path) -> None:
    both = [
        Section("a", "a", [say("a.flaw", "x; z", "no")], [Check("fits", True, key="a.fits", about="w")]),
        Section(
            "b",
            "b",
            [say("b.other", "z", "yes"), say("b.more", "y", "yes")],
            [Check("goes", False, key="b.goes", about="w")],
        ),
    ]
    plain = StudyVerdict({"rewards": ()}, (), (), ())
    assert len(contradictions(report(tmp_path, plain, both))) == 1  # the two checks
    reconciled = reconcile(both, ("rewards",), relations=RELATIONS)
    assert len(contradictions(report(tmp_path, reconciled, both))) == 1
    unreconciled = reconcile(both, ("rewards",), relations=Relations(lists=RELATIONS.lists))
    assert len(contradictions(report(tmp_path, unreconciled, both))) == 1
    told = reconciled.statements["rewards"]
    raw = json.loads((tmp_path / "report.json").read_text())
    raw["verdict"]["rewards"] += [vars(told[0]) | {"stance": "yes", "text": "the opposite"}]
    assert len(contradictions(raw)) == 2


def test_a_line_of_the_screen_that_is_explained_is_a_contradiction(tmp_path: Path) -> None:
    sections = [Section("a", "a", [say("a.flaw")]), Section("b", "b", [say("b.bad", "x")])]
    values = report(tmp_path, reconcile(sections, ("rewards",), relations=RELATIONS), sections)
    assert not contradictions(values)
    values["first_screen"]["causes"].append({"line": "B.BAD x", "key": "b.bad", "about": "x"})  # type: ignore[index]
    assert contradictions(values) == [("B.BAD x", "is explained by another statement")]
