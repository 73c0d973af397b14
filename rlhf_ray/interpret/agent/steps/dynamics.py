"""How components drive each other from step to step, behaviour by behaviour: observed, and by gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes, moments_of
from rlhf_ray.agents.play import values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.dynamics import (
    RATE,
    STRONG,
    Dynamics,
    dynamics,
    step_jacobians,
    world_jacobians,
)
from rlhf_ray.interpret.agent.steps.behaviours import behaviour_labels
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.agent.world_model.simulate import World
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import matrices
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "dynamics", "How components drive each other"

COMPONENTS, FITTED = 8, 3000
"""Few components, so that a regression within a behaviour has steps enough; steps that they are fitted to."""
STEPS, FEWEST = 120, 20
"""Steps of each behaviour that Jacobians are averaged over."""
LAGS = (1, 2)
"""From two steps on, what the agent does changes what it sees."""
SHOWN = 4

CAPTION = """\
How the scores of {components} independent components, fitted for this section alone, follow from those steps before, \
within each behaviour. Entries: of a regression (false discovery rate {rate:.0%}). The rest: whether the mean \
Jacobian, through the agent's memory alone or through the world model too, agrees with the regression: signs where \
that is above {strong}, correlation r of all entries, and p against exchanged components."""
PICTURE = "Rows: components one step later. Columns: components now. Red: more now, more later; blue: less."

Jacobian = Callable[[IntArray, IntArray], FloatArray]
"""Returns Jacobians ``[n, k, k]`` at steps of episodes, given the numbers of both, ``[n]``."""


def run(context: AgentContext) -> Section:
    """Compare lagged regression and Jacobians within each behaviour."""
    subject, episodes = context.subject, recorded(context)
    inside = values_at(subject.agent, episodes)
    values = inside[episodes.real].astype(np.float64)
    chosen = np.sort(context.rng(NAME).permutation(len(values))[:FITTED])
    basis = directions.fit("ica", values[chosen], COMPONENTS, subject.seed)
    scores = np.zeros((*episodes.real.shape, len(basis)))
    scores[episodes.real] = basis.encode(values)
    labels = behaviour_labels(context, episodes)
    world = world_of(context) if subject.agent.memory_size else None
    steps = max(FEWEST, round(STEPS * min(1.0, subject.effort)))
    by_lag: dict[int, list[Dynamics]] = {}
    for lag in LAGS:
        context.say(f"dynamics over {lag} steps")
        jacobians = _jacobians(context, episodes, basis, world, lag)
        by_lag[lag] = dynamics(scores, episodes.real, labels, jacobians, lag, steps, seed=subject.seed)
    arrays: dict[str, Any] = {
        f"{lag}/B{one.behaviour}/{name}": matrix
        for lag, behaving in by_lag.items()
        for one in behaving
        for name, matrix in _matrices(one).items()
    }
    np.savez(context.out / "dynamics.npz", names=np.array(list(basis.names), np.str_), **arrays)
    figures = [_summed_up(lag, one) for lag, behaving in by_lag.items() for one in behaving]
    rows = [row for one in figures for row in _rows(one)]
    caption = CAPTION.format(components=len(basis), rate=RATE, strong=STRONG)
    columns = ["steps", "behaviour", "pairs", "entries that differ from 0", "Jacobian", "same sign", "r", "p"]
    table = Table(columns, rows, caption)
    shown = {f"B{one.behaviour}": _matrices(one) for one in by_lag[LAGS[0]][:SHOWN]}
    names = [str(component) for component in range(len(basis))]
    pictures = [Picture("dynamics", matrices(shown, names), PICTURE)] if shown else []
    return Section(NAME, TITLE, (), (), [table], pictures, (), {"behaviours": values_of(figures)})


def _jacobians(
    context: AgentContext, episodes: Episodes, basis: Directions, world: World | None, lag: int
) -> Mapping[str, Jacobian]:
    """Return the Jacobians that there are for a lag. The score at step t is that of the memory after its observation."""
    agent, jacobians = context.subject.agent, dict[str, Jacobian]()
    if agent.memory_size and lag == 1:
        jacobians["memory"] = lambda rows, steps: step_jacobians(
            agent, basis, episodes.observations[rows, steps + 1], episodes.memory[rows, steps + 1]
        )
    if world is not None:

        def through(rows: IntArray, steps: IntArray, through_actions: bool) -> FloatArray:
            moments = moments_of(agent, episodes, rows, steps + 1, context=world.context)
            return world_jacobians(
                world, agent, basis, moments.observations, moments.actions, moments.memory, lag, through_actions
            )

        jacobians["world"] = partial(through, through_actions=True)
        if lag > 1:
            jacobians["world, actions cut"] = partial(through, through_actions=False)
    return jacobians


def _matrices(one: Dynamics) -> dict[str, FloatArray]:
    observed = {"correlation": one.observed.correlation, "regression": one.observed.regression}
    return observed | {f"Jacobian, {name}": matrix for name, matrix in one.jacobians.items()}


def _summed_up(lag: int, one: Dynamics) -> dict[str, Any]:
    """Return the figures of one behaviour: pairs of steps, share of the regression's entries that differ from 0, agreements."""
    significant = float(one.observed.significant.mean()) if one.observed.significant.size else 0.0
    about = {"steps": lag, "behaviour": f"B{one.behaviour}", "pairs": one.observed.rows, "significant": significant}
    return {**about, "agreements": one.agreements}


def _rows(one: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    about = [one["steps"], one["behaviour"], one["pairs"], f"{one['significant']:.0%}"]
    for name, agreed in one["agreements"].items():
        signs = "" if agreed.signs is None else f"{agreed.signs:.0%} of {agreed.entries}"
        yield [*about, name, signs, f"{agreed.r:.2f}", f"{agreed.p:.3f}"]
    if not one["agreements"]:
        yield [*about, "none", "", "", ""]


STEP = Step(NAME, TITLE, run, ("recording", "world_model", "bases", "behaviours"), nothing_inside)
