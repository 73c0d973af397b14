"""The steps interventions and counterfactuals: on a tiny environment whose causes are known."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.agents.recording import record_inside
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent import held
from rlhf_ray.interpret.agent.candidates import Candidate, with_concepts
from rlhf_ray.interpret.agent.effects import CausalEffect, Change
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.steps import counterfactuals, interventions, story
from rlhf_ray.interpret.agent.steps.interventions import ComponentEffect
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.kept import save
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.directions import linear
from tests.interpret.agent.lamps import AGENTS, Lamps
from tests.interpret.agent.test_rewriting import Winds, now_and_before, subject_of
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
    monkeypatch.setattr(interventions, "COMPONENTS", 1)
    for name, value in {"CONCEPTS": 1, "FEWEST_CONCEPTS": 1, "FEWEST_LEVELS": 12}.items():
        monkeypatch.setattr(held, name, value)
    work = work_of(tmp_path, memory, "interventions")
    assert interventions.STEP.why_not(work) is None
    section = interventions.run(work)
    assert [check.passed for check in section.checks] == [True]
    effects = section.values["effects"]
    assert [bool(each["concept"]) for each in effects] == [False, True]
    for each in effects:
        assert len(each["random"]) == 10
        assert each["returns"]["difference"]["low"] <= each["returns"]["difference"]["high"]


def test_a_gain_is_no_need_and_what_is_still_read_or_shared_is_said() -> None:
    levels = np.arange(40)

    def result(
        name: str, by: float, random: float, erased: float = 0.5, near: str = "", shared: float = 0.5
    ) -> ComponentEffect:
        def changed(to: float) -> CausalEffect:
            change = Change.of(np.full(40, 10.0), np.full(40, 10.0 + to), levels)
            return CausalEffect(40, 40, change, {"end": change}, {}, change, MeanEstimate(0.0, 0.0, 0.0))

        neighbours = [held.Neighbour(near, 0.97, 0.8)] if near else []
        about = changed(by), [changed(random)], 0.2, [0.2]
        one = held.Removed("", 1, 0.9, erased, shared, 0.6, neighbours, 1.0, *about)
        candidate = Candidate(linear(np.eye(3)[:1], np.zeros(3)), (0,), f"the concept “{name}”", 1.0, name, 0.9)
        return ComponentEffect(candidate, one.result, one)

    effects = [
        result("height", -2.0, 0.1, near="time"),
        result("x", -3.0, -4.0),  # larger, but not than random
        result("time", 2.0, 0.1),
        result("cue", -2.0, 0.0),  # random directions change nothing at all
        result("saw", 0.0, 0.1),
        result("pit", 0.0, 0.1, erased=0.9),
        result("coin", 0.0, 0.1, shared=0.9),  # another concept, which stays, tells most of it
    ]
    verdicts = ["matters", "no more than random", "matters", "matters", "decodable only", "not settled", "not settled"]
    assert [each.verdict for each in effects] == verdicts
    said = list(interventions._statements(effects, "memory", box=False))
    assert [(each.key.split(".")[1], each.about) for each in said] == [
        ("needs", "height; time"), ("unsettled", "x"), ("costs", "time"), ("needs", "cue"), ("not_needed", "saw"),
        ("unsettled", "pit"), ("unsettled", "coin"),
    ]  # fmt: skip
    assert "taken away at every step" in said[0].text
    assert "80 % of what is read of “time”" in said[0].text
    assert said[3].strength == "moderate"
    alone = dataclasses.replace(effects[0].result, random=[], random_variance=[])  # there is no other direction
    assert dataclasses.replace(effects[0], result=alone).verdict == "not settled"  # nothing to compare with
    small = dataclasses.replace(effects[0].result, variance=0.44, random_variance=[0.08])
    unmatched = dataclasses.replace(effects[0], result=small)
    assert unmatched.verdict == "not settled"
    assert [each.key for each in interventions._statements([unmatched], "memory", box=False)] == [
        "interventions.unmatched"
    ]


@pytest.mark.slow
def test_taken_away_is_one_thing_in_the_story_and_in_the_interventions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interventions read the story's figures; alone, they measure the same."""
    for module, name, value in (
        (interventions, "COMPONENTS", 0),
        (held, "FEWEST_LEVELS", 12),
        (held, "FEWEST_CONCEPTS", 2),
    ):
        monkeypatch.setattr(module, name, value)
    agent = AGENTS["a5"]
    record_inside(agent, Lamps(20, "a5"), list(range(60)), tmp_path / "recording", keep_states=True)
    batches = partial(Lamps, rule="a5")
    told = story.run(context_of(agent, batches, tmp_path, "story", effort=0.1))
    save(told, tmp_path / "story", "key", "identity")
    both = context_of(agent, batches, tmp_path, "both", ("recording", "story"), effort=0.1)
    alone = context_of(agent, batches, tmp_path, "alone", effort=0.1)
    first, second = (interventions.run(each).values["effects"] for each in (both, alone))
    chains = {each["concept"]: each for each in told.values["chains"]}
    assert min(chain["returns"]["difference"]["mean"] for chain in chains.values()) < -3.0
    for one, other in zip(first, second, strict=True):
        assert one["returns"] == other["returns"]
        assert one["returns"] == chains[one["concept"]]["returns"]
        share = one["returns"]["difference"]["mean"] / one["returns"]["before"]
        assert chains[one["concept"]]["success"]["change"]["mean"] == pytest.approx(share)


def test_edits_show_what_they_change(tmp_path: Path) -> None:
    work = work_of(tmp_path, "gru", "counterfactuals")
    assert counterfactuals.why_not(work) is None
    section = counterfactuals.run(work)
    assert [check.passed for check in section.checks] == [True]
    removed = section.values["edits"]["remove_trap"]["effect"]
    assert removed["outcomes"]["trap"]["after"] == 0.0
    assert removed["outcomes"]["trap"]["before"] > 0.0
    assert section.values["edits"]["shorten"]["effect"]["lengths"]["difference"]["mean"] < 0.0


def test_a_component_whose_concept_the_memory_writes_again_takes_another_direction(tmp_path: Path) -> None:
    """Unit 0 is the wind, unit 1 that of a step before; the agent acts by unit 1. Without both, it is right half of the time."""
    subject = subject_of(now_and_before)
    record_inside(subject.agent, Winds(20), list(range(60)), tmp_path / "recording")
    work = context_of(subject.agent, Winds, tmp_path, effort=0.1)
    played = recorded(work)
    values = played.memory[:, 1:][played.real].astype(np.float64)
    candidates = with_concepts(
        [Candidate(directions.fit("ica", values, 3, 0), (at,), f"component {at}", 1.0) for at in range(3)],
        values, {"wind": played.states["wind"][:, : played.real.shape[1]][played.real]}, 0.8,
    )  # fmt: skip
    assert any(each.reads == "wind" for each in candidates)
    found, stays = interventions._in_the_loop(work, candidates, played, values)
    assert not stays
    for before, after in zip(candidates, found, strict=True):
        if not before.reads:
            assert after is before
            continue
        np.testing.assert_array_equal(after.basis.patterns[0], before.basis.patterns[before.components[0]])
        once, both = (
            subject.play(range(900, 1100), hooks=[Intervention(one.basis, one.components, "ablate_midpoint")])
            for one in (before, after)
        )
        winds = [side.states["wind"][:, 1 : side.real.shape[1]].ravel() for side in (once, both)]
        told = [
            max(abs(np.corrcoef(side.memory[:, 2:, unit].ravel(), wind)[0, 1]) for unit in (0, 1))
            for side, wind in zip((once, both), winds, strict=True)
        ]
        assert told[0] > 0.5
        assert told[1] < 0.2
        assert both.returns.mean() == pytest.approx(6.0, abs=0.5)
