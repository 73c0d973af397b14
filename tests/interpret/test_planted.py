"""Planted rewards: the cause is among the first rows, with the effect that it has; without a flaw, no row is beyond its control."""

import pytest

from benchmarks.planted_causes import environments, judge, vectors
from rlhf_ray.interpret.reward.steps import effects, header
from rlhf_ray.study import kept
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import StepContext

CASES = {case.name: case for case in (*vectors.CASES, *environments.CASES)}


def section_of(subject) -> Section:
    found = header.measure(subject)

    class WithHeader(StepContext):
        def figures(self, step, kind):
            return found

    return effects.run(WithHeader(subject))


@pytest.fixture(autouse=True)
def untrained(monkeypatch):
    """Training agents takes most of the time, and shows no row."""
    monkeypatch.setattr(header, "taught", lambda *arguments, **named: None)


@pytest.mark.parametrize("name", CASES)
def test_a_planted_cause_is_shown(name):
    case = CASES[name]
    found = judge(case, {"answer": None, "sections": [kept.to_json(section_of(case.subject()))]})
    if case.flawed:
        assert found["shown"], found
    else:
        assert found["beyond_control"] == []
