"""The steps interventions and counterfactuals: on a tiny environment whose causes are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_ray.interpret.agent.chain import Work
from rlhf_ray.interpret.agent.recorded import record_inside
from rlhf_ray.interpret.agent.steps import counterfactuals, interventions
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.test_play import agent_of


def work_of(folder: Path, memory: str, step: str) -> Work:
    agent = agent_of(memory, False)
    recording = folder / "recording"
    if not recording.exists():
        keep = () if memory != "none" else (interventions.site_of(agent),)
        record_inside(agent, Corridors(16), list(range(60)), recording, keep=keep, keep_states=True)
    (folder / step).mkdir()
    return Work(agent, "Corridor", Corridors, {"recording": recording}, folder / step, folder / "none", 0, 0.1)


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_components_stand_beside_random_directions(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COMPONENTS": 1, "CONCEPTS": 1, "FEWEST": 12, "OPS": ("reflect",)}.items():
        monkeypatch.setattr(interventions, name, value)
    work = work_of(tmp_path, memory, "interventions")
    assert interventions.unsuitable(work) is None
    section = interventions.run(work)
    assert [check.passed for check in section.checks] == [True]
    kept = json.loads((work.out / "effects.json").read_text())
    assert kept["effects"]
    for each in kept["effects"]:
        assert len(each["random"]) == 10
        assert each["returns"]["difference"]["low"] <= each["returns"]["difference"]["high"]
    assert [bool(each["concept"]) for each in kept["effects"]] == [False, True]


def test_edits_show_what_they_change(tmp_path: Path) -> None:
    work = work_of(tmp_path, "gru", "counterfactuals")
    assert counterfactuals.unsuitable(work) is None
    section = counterfactuals.run(work)
    assert [check.passed for check in section.checks] == [True]
    removed = section.values["remove_trap"]
    assert removed["outcomes"]["trap"]["after"] == 0.0
    assert removed["outcomes"]["trap"]["before"] > 0.0
    assert section.values["shorten"]["lengths"]["difference"]["mean"] < 0.0
