"""The panel, a static folder that shows the agent's internals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlhf_ray.agents.agent import MEMORY
from rlhf_ray.agents.episodes import Episodes, Stretches, action_inputs
from rlhf_ray.agents.play import site_of, values_at
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.data import PanelPair, collect, pieces_of
from rlhf_ray.interpret.agent.panel.pairs import edit_pairs, intervention_pairs, simulated_pairs
from rlhf_ray.interpret.agent.saliency import Faithful
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.behaviours import behaviours
from rlhf_ray.interpret.agent.steps.clusters import tsne
from rlhf_ray.interpret.agent.steps.world_model import valid_horizon, world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, split_episodes
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "panel", "Panel"

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""


@dataclass(frozen=True)
class OfAttribution:
    """What the panel reads of the attribution's figures."""

    faithful: Faithful


def run(context: AgentContext) -> Section:
    """Write the panel to ``context.out``."""
    subject, rng = context.subject, context.rng(NAME)
    episodes = split_episodes(context, "test", subject.count(EPISODES, FEWEST))
    pieces = pieces_of(episodes, subject.count(SAMPLES, FEWEST), STEPS, rng)
    site = site_of(subject.agent)
    basis = _basis(context, episodes, site)
    known = context.figures("attribution", OfAttribution)
    pairs = _pairs(context, episodes, pieces, basis, site, rng)
    notes = {
        "Agent": f"{subject.agent.name}, {subject.agent.digest}",
        "Environment": subject.environment,
        "Components": f"the {len(basis)} {directions.TITLES[basis.kind]} of its {subject.site_name}, with the report's numbers",
        "Behaviours": "clusters of what is inside and done in these samples; not those of the report",
        "Value and likeliest action": "at each step: gradient times the difference from the mean frame or memory",
        "Seed": str(subject.seed),
    }
    context.say("gradients of the samples")
    data = collect(
        subject.agent, episodes, pieces, basis, site, rng, action_names=list(subject.action_names),
        maps={"t-SNE": partial(tsne, seed=subject.seed)},
        labels=_behaviours(context, episodes), faithful=Faithful() if known is None else known.faithful, pairs=pairs,
        title=f"{subject.environment.removeprefix('rlhf_ray/')}: the agent's internals", notes=notes,
        horizon=valid_horizon(context),
    )  # fmt: skip
    write_panel(data, context.out)
    size = sum(file.stat().st_size for file in context.out.rglob("*") if file.is_file())
    row = [len(data), int(data.lengths.sum()), len(basis), len(pairs), round(size / 1e6, 1)]
    figures = {"page": "index.html", "samples": len(data), "comparisons": len(pairs), "bytes": size}
    caption = "Open panel/index.html in a browser: it needs no server and no network."
    table = Table(["samples", "steps", "components", "comparisons", "MB"], [row], caption)
    return Section(NAME, TITLE, (), (), [table], (), (), figures)


def _basis(context: AgentContext, episodes: Episodes, site: str) -> Directions:
    """The basis of the step "bases"; without one, independent components. Names are short: "component 3"."""
    basis = basis_of(context) if site == MEMORY else None
    if basis is None:
        inside = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
        basis = directions.fit("ica", inside, COMPONENTS, seed=context.subject.seed)
    if basis.kind in directions.LABELLED:
        return basis
    return replace(basis, names=[f"component {number}" for number in range(len(basis))])


def _pairs(
    context: AgentContext, episodes: Episodes, pieces: Stretches, basis: Directions, site: str, rng: np.random.Generator
) -> list[PanelPair]:
    agent, make_batch = context.subject.agent, context.subject.make_batch
    pairs, components = intervention_pairs(agent, make_batch, episodes, pieces, basis, site, PAIRS, context.say)
    context.say("editing levels")
    pairs += edit_pairs(agent, make_batch, episodes, pieces, rng)
    if (world := world_of(context)) is not None:
        context.say("the same inside the world model")
        pairs += simulated_pairs(agent, world, episodes, pieces, basis, site, components)
    return pairs


def _behaviours(context: AgentContext, episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """Behaviours: clusters of windows of what is inside and what is done."""
    agent = context.subject.agent
    actions = action_inputs(episodes.actions, agent.action_space)
    blocks = {"inside": values_at(agent, episodes), "actions": actions}
    clustered = behaviours(blocks, episodes.real, seed=context.subject.seed)
    return {"Behaviour": (clustered.labels, [f"behaviour {number + 1}" for number in range(len(clustered))])}


STEP = Step(NAME, TITLE, run, ("recording", "world_model", "bases", "attribution"), nothing_inside)
