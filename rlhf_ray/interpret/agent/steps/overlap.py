"""Are generated states like real ones?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_ray.agents.moments import Moments, draw_moments
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.overlap import Likeness, Overlap, overlap
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, no_world
from rlhf_ray.interpret.agent.world_model.played import world_states
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.study.section import Check, Section, Statement
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

STARTS, FEWEST, STEPS = 300, 60, 6
ALIKE = 0.1
"""How far the classifier's AUC may be above that of real against real states."""


@dataclass(frozen=True)
class Overlaps:
    """What the step finds: in each space, generated beside real states. ``steps``: up to this many after the start."""

    steps: int
    spaces: dict[str, Overlap]


def run(context: AgentContext) -> Section:
    """Let the agent act in the world model, and compare memories and world states with real ones."""
    agent, world, episodes = context.subject.agent, world_of(context), recorded(context, "test")
    assert world is not None, "no_world() said that there is one"
    count = max(FEWEST, round(STARTS * min(1.0, context.subject.effort)))
    moments = draw_moments(agent, episodes, count, context.rng(WORDS.name), context=world.context)
    with torch.no_grad():
        simulated = simulate(world, agent, moments.observations, moments.actions, moments.memory, STEPS)
    # The same steps of the recording: what the agent saw when it lived through them. Cut at the end of each episode.
    times = moments.steps[:, None] + np.arange(1, STEPS + 1)
    starts, ahead = np.nonzero(times < episodes.lengths[moments.rows][:, None])
    real = Moments(moments.rows[starts], times[starts, ahead])
    states = simulated.states[:, 1:].double().numpy()[starts, ahead]
    spaces: dict[str, tuple[FloatArray, FloatArray]] = {
        "world model": (world_states(world, agent, episodes, real), states)
    }
    if agent.memory_size:
        memory = simulated.memory[:, 1:].double().numpy()[starts, ahead]
        spaces["memory"] = real.cut(episodes.memory).astype(np.float64), memory
    compared = {name: overlap(*pair, real.rows, real.rows, context.subject.seed) for name, pair in spaces.items()}
    known = {name: one for name, one in compared.items() if one is not None}
    rows = [_row(name, side, one) for name, one in known.items() for side in ("generated", "control")]
    table = WORDS.table("overlap", rows, steps=STEPS)
    return WORDS.section(_statements(known), _checks(known), [table], figures=Overlaps(STEPS, known))


def _row(name: str, side: str, both: Overlap) -> list[str]:
    one: Likeness = getattr(both, side)
    # Student's interval may reach beyond what there is.
    interval = "" if one.interval is None else f" [{max(one.interval[0], 0.0):.2f}, {min(one.interval[1], 1.0):.2f}]"
    return [
        WORDS.text(side, name=name), f"{one.auc:.2f}{interval}", f"{one.neighbours:.2f}", f"{one.coverage:.2f}"
    ]  # fmt: skip


def _apart(both: Overlap) -> float:
    """Return how far the classifier's AUC is above that of real against real states."""
    return both.generated.auc - max(0.5, both.control.auc)


def _checks(known: dict[str, Overlap]) -> Iterator[Check]:
    for name, both in known.items():
        yield WORDS.check("alike", _apart(both) <= ALIKE, _apart(both), name=name, both=both, most=ALIKE)


def _statements(known: dict[str, Overlap]) -> Iterator[Statement]:
    for name, both in known.items():
        if _apart(both) > ALIKE:
            yield WORDS.statement("apart", both.generated.auc, name=name, both=both)


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording", "world_model"), why_not=no_world)
