"""Whole reports on rewards whose cause is planted: the first line names it, nothing is false, no two statements contradict."""

import json
from pathlib import Path

import pytest

from benchmarks.planted import CASES, study
from benchmarks.planted_causes.judging import judge

QUICK = ("constant", "corner pixel", "action", "after the step")


@pytest.mark.parametrize("name", QUICK)
def test_the_first_line_names_the_cause_and_nothing_is_false(name: str, tmp_path: Path) -> None:
    found = judge(CASES[name], json.loads(study(CASES[name], tmp_path).read_text()))
    assert found["named"], found["first_line"]
    assert not found["false"]
    assert not found["contradictions"]
    assert found["words"] <= 90
    assert found["numbers"] <= 20
