"""What an agent uses, by figures: agents whose cause is planted, edits that change nothing, agents that need nothing."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.planted_causes import agents
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.play import play
from rlhf_ray.interpret.agent.changes import Change, EditWorld, edits, other_memory
from rlhf_ray.interpret.agent.report import write_agent_report
from rlhf_ray.interpret.agent.steps import CATALOGUE
from rlhf_ray.interpret.agent.steps.effects import ACTIONS, ONCE, RETURN, VALUE, Bench
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study import Section, Study, run_study
from rlhf_ray.study.section import Effect
from tests.interpret.agent.lamps import ACTED, AGENTS, BACK, OBSERVED, STEPS, Lamps

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


def test_a_single_decisive_action_shows(tmp_path: Path) -> None:
    """A cue of the first step decides one action in 150: a share of steps would be less than one in a hundred."""
    length = 150

    class Maze(Lamps):
        """Lamp A of step 0 says which way to turn at the last step."""

        def __init__(self, n: int):
            super().__init__(n)
            self.edits = {"flip_cue": "exchanges the cue"}
            self.fields = [("cue", "i1"), ("step", "<i4"), ("echo", "i1")]

        def reset(self, levels):  # type: ignore[no-untyped-def]
            self.state = np.zeros(self.n, self.fields)
            self.state["cue"] = [2 * np.random.default_rng(int(level)).integers(2) - 1 for level in levels]
            return self._seen()

        def step(self, actions):  # type: ignore[no-untyped-def]
            from rlhf_ray.envs.batch import BatchStep

            last = self.state["step"] == length - 1
            rewards = np.where(last & (np.asarray(actions) == (self.state["cue"] > 0)), 1.0, 0.0)
            self.state["step"] += self.state["step"] < length
            over = self.state["step"] >= length
            return BatchStep(self._seen(), rewards, over, np.zeros(self.n, bool), ["end" if o else "" for o in over])

        def describe(self):  # type: ignore[no-untyped-def]
            return {"cue": self.state["cue"] > 0}

        def edit(self, name, rows=None):  # type: ignore[no-untyped-def]
            self.state["cue"][np.ones(self.n, bool) if rows is None else rows] *= -1
            return self._seen()

        def _seen(self):  # type: ignore[no-untyped-def]
            t, cue = self.state["step"], self.state["cue"]
            return np.stack([np.where(t == 0, cue, 0), t >= length - 1, np.sin(0.3 * t)], 1).astype(np.float32)

    def decide(seen, memory):  # type: ignore[no-untyped-def]
        turn = seen[:, 1] * 2 * memory[:, 0] - (1 - seen[:, 1])
        return torch.stack([-turn, turn], 1), memory[:, 0] * 0

    agent = FunctionAgent(
        decide,
        OBSERVED,
        ACTED,
        remember=lambda x, m: torch.where(x[:, :1] != 0, x[:, :1], m),
        memory_size=1,
        name="maze",
    )
    plain = play(agent, Maze(24), range(24), keep_states=True)
    bench = Bench(agent, Maze, plain, np.arange(24), 1.0, 4, length)
    [flip] = edits(Maze(24), plain)
    assert flip.lasts  # made at the start, it stays
    found = bench.effect(flip)
    assert found.figures[ACTIONS].mean == 1.0
    assert found.figures[RETURN].mean == 0.0  # the world's cue changes with the agent's
    at_last = bench.play(Change("", EditWorld("flip_cue")).at(np.full(24, length - 1), np.arange(24)))
    assert (at_last.returns == 0.0).all()  # an edit that the agent no longer sees


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
