"""Step: how components drive each other from step to step, behaviour by behaviour: observed, and by gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import moments_of
from rlhf_ray.agents.replay import values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.at_hand import matrices, nothing_inside, recorded
from rlhf_ray.interpret.agent.attribution.looked_at import world_of
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.dynamics import RATE, STRONG, Dynamics, dynamics, step_jacobians, world_jacobians
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.study.section import Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "dynamics"
TITLE = "How directions drive each other"

COMPONENTS = 8
STEPS = 120
"""Steps of each behaviour that Jacobians are averaged over."""
LAGS = (1, 2)
"""From two steps on, what the agent does changes what it sees."""
SHOWN = 4


def why_not(context: AgentContext) -> str | None:
    """Return why there are no dynamics."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Compare lagged regression and Jacobians within each behaviour."""
    episodes = recorded(context)
    inside = values_at(context.subject.agent, episodes)
    basis = _basis(context, inside[episodes.real].astype(np.float64))
    scores = np.zeros((*episodes.real.shape, len(basis)))
    scores[episodes.real] = basis.transform(inside[episodes.real].astype(np.float64))
    labels = _labels(context, episodes)
    world = world_of(context) if context.subject.agent.memory_size else None
    most = max(20, round(STEPS * min(1.0, context.subject.effort)))
    every: dict[int, list[Dynamics]] = {}
    for lag in LAGS:
        context.say(f"dynamics over {lag} steps")
        jacobians = _jacobians(context, episodes, basis, world, lag)
        every[lag] = dynamics(scores, episodes.real, labels, jacobians, lag, most, seed=context.subject.seed)
    arrays: dict[str, Any] = {
        f"{lag}/B{each.behaviour}/{name}": matrix
        for lag, found in every.items()
        for each in found
        for name, matrix in _matrices(each).items()
    }
    np.savez(context.out / "dynamics.npz", names=np.array(list(basis.names), np.str_), **arrays)
    rows = [row for lag, found in every.items() for each in found for row in _rows(lag, each)]
    columns = ("steps", "behaviour", "pairs", "significant", "Jacobian through", "same sign", "r", "p")
    values: dict[str, Any] = {"basis": basis.kind, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
    write_text(context.out / "dynamics.json", json.dumps(values, indent=1) + "\n")
    caption = (
        f"How the scores of {len(basis)} independent components, fitted for this section alone, follow from those steps before, "
        f"within each behaviour. Significant: entries of a regression that differ from zero (false discovery rate {RATE:.0%}). The "
        "rest: whether the mean Jacobian, through the agent's memory alone or through the world model too, agrees with the "
        f"regression: signs where that is above {STRONG}, correlation r of all entries, and p against exchanged components."
    )
    shown = {f"B{each.behaviour}": _matrices(each) for each in every[LAGS[0]][:SHOWN]}
    pictures = []
    if shown:
        text = "Rows: components one step later. Columns: components now. Red: more now, more later; blue: less."
        pictures = [Picture("dynamics", matrices(shown, [str(at) for at in range(len(basis))]), text)]
    return Section(NAME, TITLE, _statements(every[LAGS[0]]), (), [Table(columns, rows, caption)], pictures, values)


def _basis(context: AgentContext, values: FloatArray) -> Basis:
    """Return few independent components, so that a regression within a behaviour has steps enough."""
    some = np.sort(context.rng(NAME).permutation(len(values))[:3000])
    return bases.fit("ica", values[some], COMPONENTS, context.subject.seed)


def _labels(context: AgentContext, episodes: Episodes) -> IntArray:
    """Return the behaviour of each step; one behaviour if that step did not run on the same episodes."""
    folder = context.folders.get("behaviours")
    if folder is not None and (folder / "behaviours.npz").exists():
        with np.load(folder / "behaviours.npz", allow_pickle=False) as kept:
            labels, levels = kept["labels"], kept["levels"]
        if labels.shape == episodes.real.shape and np.array_equal(levels, episodes.levels):
            return np.asarray(labels)
    return np.where(episodes.real, 0, -1)


def _jacobians(
    context: AgentContext, episodes: Episodes, basis: Basis, world: World | None, lag: int
) -> dict[str, Callable[[IntArray, IntArray], FloatArray]]:
    """Return the Jacobians that there are for a lag. The score at step t is that of the memory after its observation."""
    if not context.subject.agent.memory_size:
        return {}
    found: dict[str, Callable[[IntArray, IntArray], FloatArray]] = {}
    if lag == 1:
        found["memory"] = lambda rows, steps: step_jacobians(
            context.subject.agent, basis, episodes.observations[rows, steps + 1], episodes.memory[rows, steps + 1]
        )
    if world is not None:

        def through(rows: IntArray, steps: IntArray, cut: frozenset[Any]) -> FloatArray:
            moments = moments_of(context.subject.agent, episodes, rows, steps + 1, context=world.context)
            given = moments.observations, moments.actions, moments.memory
            return world_jacobians(world, context.subject.agent, basis, *given, lag, cut)

        found["world"] = partial(through, cut=frozenset())
        if lag > 1:
            found["world, actions cut"] = partial(through, cut=frozenset(["action"]))
    return found


def _matrices(each: Dynamics) -> dict[str, FloatArray]:
    observed = {"correlation": each.observed.correlation, "regression": each.observed.regression}
    return observed | {f"Jacobian, {name}": matrix for name, matrix in each.jacobians.items()}


def _rows(lag: int, each: Dynamics) -> list[list[Any]]:
    share = f"{each.observed.significant.mean():.0%}" if each.observed.significant.size else "0%"
    start = [lag, f"B{each.behaviour}", each.observed.rows, share]
    if not each.agreements:
        return [[*start, "none", "", "", ""]]
    return [
        [
            *start,
            name,
            "" if found.signs is None else f"{found.signs:.0%} of {found.entries}",
            f"{found.r:.2f}",
            f"{found.p:.3f}",
        ]
        for name, found in each.agreements.items()
    ]


def _statements(found: list[Dynamics]) -> list[Statement]:
    known = [each.agreements["memory"] for each in found if "memory" in each.agreements]
    if not known:
        return []
    agreeing = sum(each.p < RATE and each.r > 0 for each in known)
    if agreeing == len(known):
        return []
    text = (
        f"In {len(known) - agreeing} of {len(known)} behaviours the agent's own gradients don't predict how its components follow "
        "each other: don't read dynamics off them."
    )
    return [Statement("warning", text, 1.0 - agreeing / len(known))]


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model", "bases", "behaviours"), why_not=why_not)
