"""Whole reports on rewards whose cause is planted: the first line names it, nothing is false, no two statements contradict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.planted import CASES, blank, study
from benchmarks.planted_causes.judging import judge

QUICK = ("constant", "previous action", "action", "after the step")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_first_line_names_the_cause_and_nothing_is_false(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", blank)
    case = CASES[name]
    quick = replace(case, subject=lambda: replace(case.subject(), effort=0.1))
    found = judge(case, json.loads(study(quick, tmp_path).read_text()))
    assert found["named"], found["first_line"]
    assert not found["false"]
    assert not found["contradictions"]
    assert found["words"] <= 90
    assert found["numbers"] <= 20
