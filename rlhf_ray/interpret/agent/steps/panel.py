"""Step: the panel, a static folder that shows what goes on inside the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rlhf_ray.agents.agent import MEMORY
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Stretches
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.at_hand import nothing_inside, site_name
from rlhf_ray.interpret.agent.attribution.looked_at import basis_of, valid_horizon, world_of
from rlhf_ray.interpret.agent.attribution.samples import GradientSamples
from rlhf_ray.interpret.agent.bases.basis import Basis
from rlhf_ray.interpret.agent.behaviours import action_inputs, behaviours
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.ahead import WAY_NAMES, effects_ahead
from rlhf_ray.interpret.agent.panel.collect import PanelExtras, collect
from rlhf_ray.interpret.agent.panel.data import PanelPair
from rlhf_ray.interpret.agent.panel.pairs import edit_pairs, intervention_pairs, simulated_pairs
from rlhf_ray.interpret.agent.panel.samples import StepEffects, pieces_of
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step

NAME = "panel"
TITLE = "Panel"

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to show; None otherwise."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Write the panel to ``context.out``."""
    episodes = split_episodes(context, "test", max(FEWEST, round(EPISODES * context.subject.effort)))
    rng = context.rng(NAME)
    pieces = pieces_of(episodes, max(FEWEST, round(SAMPLES * context.subject.effort)), STEPS, rng)
    site = site_of(context.subject.agent)
    basis = _basis(context, episodes, site)
    ahead, estimator = _ahead(context, pieces, basis, site)
    batch = context.subject.make_batch(1)
    action_names = list(batch.action_names)
    batch.close()
    pairs = _pairs(context, episodes, pieces, basis, site, rng)
    site_words = site_name(context.subject.agent)
    notes = {
        "Agent": f"{context.subject.agent.name}, {context.subject.agent.digest}",
        "Environment": context.subject.environment,
        "Components": f"the {len(basis)} {bases.TITLES[basis.kind]} of its {site_words}, with the report's numbers",
        "Behaviours": "clusters of what is inside and done in these samples; not those of the report",
        "Value and likeliest action": "at each step: gradient times the difference from the mean frame or memory",
        "Seed": str(context.subject.seed),
    }
    if estimator:
        notes["Some steps on"] = f"gradients through the steps in between ({estimator})"
    extras = PanelExtras(
        pairs=pairs, labels=_behaviours(context, episodes), ahead=ahead, way_names=WAY_NAMES if ahead else (),
        horizon=valid_horizon(context), notes=notes,
    )  # fmt: skip
    context.say("gradients of the samples")
    title = f"{context.subject.environment.removeprefix('rlhf_ray/')}: what goes on inside the agent"
    data = collect(
        context.subject.agent, episodes, pieces, basis, site, rng,
        title=title, seed=context.subject.seed, action_names=action_names, extras=extras,
    )  # fmt: skip
    write_panel(data, context.out)
    size = sum(file.stat().st_size for file in context.out.rglob("*") if file.is_file())
    table = Table(
        ["samples", "steps", "components", "comparisons", "MB"],
        [[len(data), int(data.lengths.sum()), len(basis), len(pairs), round(size / 1e6, 1)]],
        f"Open {NAME}/index.html in a browser: it needs no server and no network.",
    )
    values: dict[str, Any] = {"page": "index.html", "samples": len(data), "comparisons": len(pairs), "bytes": size}
    return Section(NAME, TITLE, tables=[table], values=values)


def _basis(context: AgentContext, episodes: Episodes, site: str) -> Basis:
    """The basis of the step "bases"; without one, independent components. Names are short: "component 3"."""
    found = basis_of(context) if site == MEMORY else None
    if found is None:
        inside = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
        found = bases.fit("ica", inside, COMPONENTS, seed=context.subject.seed)
    names = found.names if found.kind in bases.LABELLED else [f"component {at}" for at in range(len(found))]
    return cast(Basis, replace(cast(Any, found), names=names))


def _ahead(context: AgentContext, pieces: Stretches, basis: Basis, site: str) -> tuple[StepEffects | None, str]:
    """What quantities some steps on depend on, from the step "attribution", and its estimator."""
    folder = context.folders.get("attribution")
    if folder is None or site != MEMORY:
        return None, ""
    try:
        samples = GradientSamples.load(folder)
    except SettingError:
        return None, ""
    return effects_ahead(samples, pieces, basis), samples.estimator


def _pairs(
    context: AgentContext, episodes: Episodes, pieces: Stretches, basis: Basis, site: str, rng: np.random.Generator
) -> list[PanelPair]:
    pairs, components = intervention_pairs(
        context.subject.agent, context.subject.make_batch, episodes, pieces, basis, site, PAIRS, context.say
    )
    context.say("editing levels")
    pairs += edit_pairs(context.subject.agent, context.subject.make_batch, episodes, pieces, rng, context.mapper)
    if (world := world_of(context)) is not None:
        context.say("the same inside the world model")
        pairs += simulated_pairs(context.subject.agent, world, episodes, pieces, basis, site, components)
    return pairs


def _behaviours(context: AgentContext, episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """Behaviours: clusters of windows of what is inside and what is done."""
    blocks = {"inside": values_at(context.subject.agent, episodes), "actions": action_inputs(episodes)}
    found = behaviours(blocks, episodes.real, seed=context.subject.seed)
    return {"Behaviour": (found.labels, [f"behaviour {number + 1}" for number in range(len(found))])}


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model", "quality", "bases", "attribution"), why_not=why_not)
