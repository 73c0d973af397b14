"""What an agent uses, by figures: agents whose cause is planted, edits that change nothing, agents that need nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.planted_causes import agents
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.play import play
from rlhf_ray.interpret.agent.changes import Change, edit_world, edits, other_memory, other_sights
from rlhf_ray.interpret.agent.report import write_agent_report
from rlhf_ray.interpret.agent.steps import CATALOGUE
from rlhf_ray.interpret.agent.steps.effects import ACTIONS, ONCE, RETURN, VALUE, Bench
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study import Section, Study, run_study
from rlhf_ray.study.section import Effect
from tests.interpret.agent.corridor import LIMIT, Corridors
from tests.interpret.agent.lamps import AGENTS, BACK, STEPS, Lamps

torch.set_num_threads(1)
TOLD = ("recording", "header", "effects", "concepts")
QUICK = ("five steps ago", "lamp in sight", "late", "always on")


def told(subject: AgentSubject, folder: Path) -> dict[str, Section]:
    """Run the steps that state what the agent uses and remembers."""
    sections = run_study(Study(subject, {name: CATALOGUE[name] for name in TOLD}, folder))
    assert not [check.remedy for section in sections for check in section.checks if check.name.endswith(" ran")]
    return {section.name: section for section in sections}


def beyond(row: Effect) -> bool:
    """Whether more actions change than with the control, with the whole interval."""
    low = row.figures[ACTIONS].low
    return low is not None and low > (row.control or 0.0)


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name == "untrained":  # a network as it was drawn does react to what it sees, though nothing depends on that
        return [pytest.mark.slow, pytest.mark.xfail(reason="its control would have to be another network's reactions")]
    return [] if name in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks(case.name), id=case.name) for case in agents.CASES])
def test_a_planted_cause_is_among_the_first_rows_and_nothing_else_is_made_up(case, tmp_path):  # type: ignore[no-untyped-def]
    subject = case.subject()
    tables = told(subject, tmp_path)["effects"].effects
    first = [row for table in tables for row in table.rows[:3]]
    if case.flawed:
        assert any(re.search(case.cause, row.name) and beyond(row) for row in first), [row.name for row in first]
    else:
        assert not [row.name for table in tables for row in table.rows if beyond(row)]
    for table in tables:
        for row in table.rows:
            if any(re.match(name, row.name) for name in agents.UNMOVED.get(case.name, ())):
                assert row.figures[ACTIONS].mean == 0.0, row.name


@pytest.fixture(scope="module")
def bench() -> Bench:
    agent = AGENTS["a5"]
    plain = play(agent, Lamps(40, "a5"), range(40), keep_states=True)
    return Bench(agent, partial(Lamps, rule="a5"), plain, np.arange(40), 1.0, 6, STEPS)


def test_figures_of_an_edit_are_those_on_paper(bench: Bench) -> None:
    """Lamp A is shown once, remembered for 5 steps, and each step's action is worth 1 by what lamp A was 5 steps ago."""
    batch = Lamps(8, "a5")
    found = {change.name: change for change in edits(batch, bench.plain)}
    assert not any(change.lasts for change in found.values())
    flipped = bench.effect(found["flip_a: switches lamp A"])
    assert flipped.figures[ACTIONS].mean == 1.0
    # Memory and world both hear of a switch: what is wanted changes with what is done. Steps before are as they were.
    assert flipped.figures[RETURN].mean == flipped.figures[ONCE].mean == 0.0
    other = bench.effect(found["flip_b: switches lamp B"])
    assert other.figures[ACTIONS].mean == other.figures[RETURN].mean == 0.0
    assert other.figures[VALUE].mean == pytest.approx(2.0, rel=0.05)  # its value is lamp B, -1 or 1
    assert other.control == bench.repeated.mean == 0.0


def test_memory_that_stands_still_forgets(bench: Bench) -> None:
    still, other = other_memory(bench.plain, np.roll(np.arange(40), 1))
    forgotten = bench.effect(still)
    assert forgotten.figures[ACTIONS].mean == 1.0
    # Lamp A is 0 in a memory that never began, so that it is never on: half of the steps are wrong.
    wanted = -(bench.plain.actions == 1).sum(1).mean()
    assert forgotten.figures[RETURN].mean == pytest.approx(wanted)
    assert bench.effect(other).figures[RETURN].mean < -3.0


def test_going_on_from_a_moment_is_playing_from_the_start(bench: Bench) -> None:
    """What comes before a change is as it was, so that nothing depends on whether the environment can save its states."""
    without = replace(bench, plain=replace(bench.plain, env_states=()))
    for change in (
        *other_memory(bench.plain, np.roll(np.arange(40), 1)),
        *other_sights(bench.plain, np.roll(np.arange(40), 1), []),
    ):
        found, expected = bench.effect(change), without.effect(change)
        assert found.figures == expected.figures, change.name
        assert found.figures[ONCE].mean != 0.0


def test_without_memory_the_share_at_once_is_that_of_playing_throughout() -> None:
    """It looks at lamp A alone, so that some numbers matter and others don't."""

    def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([1.0 - 2.0 * seen[:, 0], 2.0 * seen[:, 0] - 1.0], 1), seen[:, 0]

    agent = FunctionAgent(decide, Lamps(1, "a").observation_space, Lamps(1, "a").action_space)
    plain = play(agent, Lamps(40, "a"), range(40), keep_states=True)
    bench = Bench(agent, partial(Lamps, rule="a"), plain, np.arange(40), 1.0, 2, STEPS)
    shares = set()
    for change in other_sights(plain, np.roll(np.arange(40), 1), [str(n) for n in range(plain.observations.shape[-1])]):
        throughout = bench.play(change.throughout(40)).actions != plain.actions
        share = throughout.reshape(40, -1).any(1).mean()
        assert bench.effect(change).figures[ACTIONS].mean == bench.ever(change).mean == pytest.approx(share), (
            change.name
        )
        shares.add(share)
    assert 0.0 in shares
    assert max(shares) > 0.0


def test_an_edit_that_lasts_is_made_at_the_start_and_a_single_action_shows() -> None:
    """The trap, seen at the first step, decides one action: to leap over it, or to walk on."""

    def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        leap = ((seen[:, 0] == 1 / 8) & (memory[:, 0] > 0)).float()
        return torch.stack([0 * leap - 1, 1 - leap, leap], 1), seen[:, 0]

    space, actions = Corridors(1).observation_space, Corridors(1).action_space
    agent = FunctionAgent(decide, space, actions, remember=lambda seen, memory: memory + seen[:, 2:], memory_size=1)
    plain = play(agent, Corridors(8), range(40), keep_states=True)
    bench = Bench(agent, Corridors, plain, np.arange(40), 1.0, 4, LIMIT)
    remove = edits(Corridors(8), plain)[0]
    assert remove.lasts
    assert (plain.returns == 1.0).all()
    found = bench.effect(remove)
    assert found.figures[ACTIONS].mean == pytest.approx(plain.states["trap"][:, 0].mean())
    assert found.figures[RETURN].mean == 0.0
    late = bench.play(Change("", edit_world("remove_trap")).at(np.ones(40, np.int64), np.arange(40)))
    np.testing.assert_array_equal(late.actions, plain.actions)  # an edit that the agent no longer sees


@pytest.mark.slow
def test_the_page_states_figures_and_what_is_remembered(tmp_path: Path) -> None:
    subject = AgentSubject(AGENTS["both"], "Lamps both", 0, 0.05, partial(Lamps, rule="both"))
    sections = told(subject, tmp_path)
    page, screen = write_agent_report(list(sections.values()), tmp_path, {"agent": "both", "environment": "Lamps"})
    assert page.exists()
    assert "actions changed" in screen.text
    header = sections["header"]
    assert header.checks[0].passed
    assert header.values["returns"]["mean"] == STEPS
    remembered = {row[0]: row for row in sections["concepts"].tables[0].rows}
    assert remembered["a2"][5] == 3  # lamp A is remembered for 5 steps: 2 steps ago, and 3 before that
    assert remembered["a5"][5] == 0  # what was before is only told by the time, as of any other episode
    removed = sections["effects"].values["actions"]
    assert removed["a2"]["mean"] == removed["b3"]["mean"] > sections["effects"].values["controls"]["a2"]
    assert remembered["b3"][6].startswith("1.00")
    assert BACK == 6
