"""The steps interventions and counterfactuals: on a tiny environment whose causes are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.agents.recording import record_inside
from rlhf_ray.interpret.agent.candidates import Candidate
from rlhf_ray.interpret.agent.controls import Controlled
from rlhf_ray.interpret.agent.effects import CausalEffect, Change
from rlhf_ray.interpret.agent.steps import counterfactuals, interventions
from rlhf_ray.interpret.agent.subject import AgentContext
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
    (folder / step).mkdir()
    return context_of(agent, "Corridor", Corridors, {"recording": recording}, folder / step, folder / "none", 0, 0.1)


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_components_stand_beside_random_directions(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COMPONENTS": 1, "CONCEPTS": 1, "FEWEST": 12, "OPS": ("reflect",)}.items():
        monkeypatch.setattr(interventions, name, value)
    work = work_of(tmp_path, memory, "interventions")
    assert interventions.why_not(work) is None
    section = interventions.run(work)
    assert [check.passed for check in section.checks] == [True]
    kept = json.loads((work.out / "effects.json").read_text())
    assert kept["effects"]
    for each in kept["effects"]:
        assert len(each["random"]) == 10
        assert each["returns"]["difference"]["low"] <= each["returns"]["difference"]["high"]
    assert [bool(each["concept"]) for each in kept["effects"]] == [False, True]


def test_an_effect_is_said_of_every_concept_that_it_may_be_about_and_a_gain_is_no_need() -> None:
    levels, patterns = np.arange(40), np.array([[1.0, 0.0, 0.0], [3.0, 0.2, 0.0], [0.0, 0.0, 1.0]])

    def result(at: int, name: str, op: str, by: float, random: float) -> interventions._Result:
        def changed(to: float) -> CausalEffect:
            change = Change.of(np.zeros(40), np.full(40, to), levels)
            return CausalEffect(40, change, {"end": change}, {}, change, change.difference)

        candidate = Candidate(linear(patterns[[at]], np.zeros(3)), 0, f"concept {name}", 1.0, name, 0.9)
        return interventions._Result(candidate, op, Controlled(changed(by), [changed(random)]))  # type: ignore[arg-type]

    said = [
        each.text
        for each in interventions._statements(
            [
                result(0, "height", "reflect", -3.0, -4.0),  # larger, but not than random
                result(0, "height", "ablate_midpoint", -2.0, 0.1),
                result(1, "time", "reflect", 2.0, 0.1),
                result(2, "cue", "reflect", -2.0, 0.1),
            ],
            "memory",
            box=False,
        )
    ]
    assert said[0].startswith("The agent needs concept height in its memory: with it set to its midpoint")
    assert said[0].endswith("It is nearly the direction of time, too: which of them matters can't be told.")
    assert said[1].startswith("Concept time in the memory costs the agent return: with it mirrored")
    assert "It is nearly the direction of height, too" in said[1]
    assert "nearly" not in said[2]


def test_edits_show_what_they_change(tmp_path: Path) -> None:
    work = work_of(tmp_path, "gru", "counterfactuals")
    assert counterfactuals.why_not(work) is None
    section = counterfactuals.run(work)
    assert [check.passed for check in section.checks] == [True]
    removed = section.values["remove_trap"]
    assert removed["outcomes"]["trap"]["after"] == 0.0
    assert removed["outcomes"]["trap"]["before"] > 0.0
    assert section.values["shorten"]["lengths"]["difference"]["mean"] < 0.0
