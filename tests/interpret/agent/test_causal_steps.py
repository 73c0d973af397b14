"""The steps interventions and counterfactuals: on a tiny environment whose causes are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.agents.recording import record_inside
from rlhf_ray.interpret.agent.candidates import Candidate
from rlhf_ray.interpret.agent.controls import Controlled
from rlhf_ray.interpret.agent.effects import CausalEffect, Change
from rlhf_ray.interpret.agent.steps import counterfactuals, interventions
from rlhf_ray.interpret.agent.steps.interventions import ComponentEffect
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.directions.interventions import Op
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.directions import linear
from tests.interpret.contexts import context_of


def work_of(folder: Path, memory: str, step: str) -> AgentContext:
    agent = agent_of(memory, False)
    recording = folder / "recording"
    if not recording.exists():
        keep = () if memory != "none" else (interventions.site_of(agent),)
        record_inside(agent, Corridors(16), list(range(60)), recording, keep=keep, keep_states=True)
    return context_of(agent, Corridors, folder, step, effort=0.1)


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_components_stand_beside_random_directions(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COMPONENTS": 1, "CONCEPTS": 1, "FEWEST": 12, "OPS": ("reflect",)}.items():
        monkeypatch.setattr(interventions, name, value)
    work = work_of(tmp_path, memory, "interventions")
    assert interventions.STEP.why_not(work) is None
    section = interventions.run(work)
    assert [check.passed for check in section.checks] == [True]
    effects = section.values["effects"]
    assert [bool(each["concept"]) for each in effects] == [False, True]
    for each in effects:
        assert len(each["random"]) == 10
        assert each["returns"]["difference"]["low"] <= each["returns"]["difference"]["high"]


def test_an_effect_may_be_that_of_a_concept_with_the_same_direction_and_a_gain_is_no_need() -> None:
    levels, patterns = np.arange(40), np.array([[1.0, 0.0, 0.0], [3.0, 0.2, 0.0], [0.0, 0.0, 1.0]])
    names = ("height", "time", "cue")
    candidates = [
        Candidate(linear(patterns[[row]], np.zeros(3)), 0, f"the concept “{name}”", 1.0, name, 0.9)
        for row, name in enumerate(names)
    ]

    def result(row: int, op: Op, by: float, random: float) -> ComponentEffect:
        def changed(to: float) -> CausalEffect:
            change = Change.of(np.zeros(40), np.full(40, to), levels)
            return CausalEffect(40, 40, change, {"end": change}, {}, change, change.difference)

        same = interventions._same_direction(candidates[row], candidates)
        return ComponentEffect(candidates[row], op, Controlled(changed(by), [changed(random)]), same)

    effects = [
        result(0, "reflect", -3.0, -4.0),  # larger, but not than random
        result(0, "ablate_midpoint", -2.0, 0.1),
        result(1, "reflect", 2.0, 0.1),
        result(2, "reflect", -2.0, 0.1),
    ]
    assert [each.verdict for each in effects] == ["no more than random", "matters", "matters", "matters"]
    assert [each.same_direction for each in effects[1:]] == [("time",), ("height",), ()]
    said = list(interventions._statements(effects, "memory", box=False))
    assert [(each.kind, each.about, each.weight) for each in said] == [("uses", name, 2.0) for name in names]
    assert "set to its midpoint" in said[0].text
    assert "costs the agent return" in said[1].text


def test_edits_show_what_they_change(tmp_path: Path) -> None:
    work = work_of(tmp_path, "gru", "counterfactuals")
    assert counterfactuals.why_not(work) is None
    section = counterfactuals.run(work)
    assert [check.passed for check in section.checks] == [True]
    removed = section.values["edits"]["remove_trap"]["effect"]
    assert removed["outcomes"]["trap"]["after"] == 0.0
    assert removed["outcomes"]["trap"]["before"] > 0.0
    assert section.values["edits"]["shorten"]["effect"]["lengths"]["difference"]["mean"] < 0.0
