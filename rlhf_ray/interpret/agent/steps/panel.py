"""The panel, a static folder that shows the agent's internals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf_ray.agents.agent import MEMORY
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Stretches
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.behaviours import action_inputs, behaviours
from rlhf_ray.interpret.agent.drawn_maps import DrawnMaps, OfAttribution
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.ahead import WAY_NAMES, effects_ahead
from rlhf_ray.interpret.agent.panel.collect import PanelExtras, collect
from rlhf_ray.interpret.agent.panel.data import PanelPair
from rlhf_ray.interpret.agent.panel.pairs import edit_pairs, intervention_pairs, simulated_pairs
from rlhf_ray.interpret.agent.panel.samples import StepEffects, pieces_of
from rlhf_ray.interpret.agent.questions.samples import GradientSamples
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.quality import valid_horizon
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""
NOTES = ("Agent", "Environment", "Components", "Behaviours", "Value and likeliest action", "Seed", "Some steps on")
"""Heads of the panel's notes; the last one is there if something was computed some steps on."""


@dataclass(frozen=True)
class WrittenPanel:
    """What the step writes: the page, and how many samples, comparisons and bytes it holds."""

    page: str
    samples: int
    comparisons: int
    bytes: int


def run(context: AgentContext) -> Section:
    """Write the panel to ``context.out``."""
    subject, rng = context.subject, context.rng(WORDS.name)
    episodes = split_episodes(context, "test", subject.count(EPISODES, FEWEST))
    pieces = pieces_of(episodes, subject.count(SAMPLES, FEWEST), STEPS, rng)
    site = site_of(subject.agent)
    basis = _basis(context, episodes, site)
    known = context.figures("attribution", OfAttribution)
    drawn = DrawnMaps() if known is None else known.drawn
    doubts = {why: WORDS.text(why) for why in ("unfaithful", "unchecked")}
    ahead, estimator = _ahead(context, pieces, basis, site, drawn, doubts)
    pairs = _pairs(context, episodes, pieces, basis, site, rng)
    about = {
        "subject": subject,
        "basis": directions.TITLES[basis.kind],
        "components": len(basis),
        "estimator": estimator,
    }
    notes = {name: WORDS.text(f"note {name}", **about) for name in NOTES if estimator or name != NOTES[-1]}
    extras = PanelExtras(
        pairs=pairs, labels=_behaviours(context, episodes), ahead=ahead, way_names=WAY_NAMES if ahead else (),
        horizon=valid_horizon(context), notes=notes, drawn=drawn, doubts=doubts,
    )  # fmt: skip
    context.say("gradients of the samples")
    title = WORDS.text("panel", environment=subject.environment.removeprefix("rlhf_ray/"))
    data = collect(
        subject.agent, episodes, pieces, basis, site, rng,
        title=title, seed=subject.seed, action_names=list(subject.action_names), extras=extras,
    )  # fmt: skip
    write_panel(data, context.out)
    size = sum(file.stat().st_size for file in context.out.rglob("*") if file.is_file())
    row = [len(data), int(data.lengths.sum()), len(basis), len(pairs), round(size / 1e6, 1)]
    figures = WrittenPanel("index.html", len(data), len(pairs), size)
    return WORDS.section(tables=[WORDS.table("panel", [row])], figures=figures)


def _basis(context: AgentContext, episodes: Episodes, site: str) -> Directions:
    """The basis of the step "bases"; without one, independent components. Names are short: "component 3"."""
    basis = basis_of(context) if site == MEMORY else None
    if basis is None:
        inside = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
        basis = directions.fit("ica", inside, COMPONENTS, seed=context.subject.seed)
    if basis.kind in directions.LABELLED:
        return basis
    return replace(basis, names=[f"component {number}" for number in range(len(basis))])


def _ahead(
    context: AgentContext,
    pieces: Stretches,
    basis: Directions,
    site: str,
    drawn: DrawnMaps,
    doubts: Mapping[str, str],
) -> tuple[StepEffects | None, str]:
    """What quantities some steps on depend on, from the step "attribution", and its estimator."""
    folder = context.folders.get("attribution")
    if folder is None or site != MEMORY:
        return None, ""
    try:
        samples = GradientSamples.load(folder)
    except SettingError:
        return None, ""
    return effects_ahead(samples, pieces, basis, drawn, doubts), samples.estimator


def _pairs(
    context: AgentContext, episodes: Episodes, pieces: Stretches, basis: Directions, site: str, rng: np.random.Generator
) -> list[PanelPair]:
    agent, make_batch = context.subject.agent, context.subject.make_batch
    pairs, components = intervention_pairs(agent, make_batch, episodes, pieces, basis, site, PAIRS, context.say)
    context.say("editing levels")
    pairs += edit_pairs(agent, make_batch, episodes, pieces, rng, context.mapper)
    if (world := world_of(context)) is not None:
        context.say("the same inside the world model")
        pairs += simulated_pairs(agent, world, episodes, pieces, basis, site, components)
    return pairs


def _behaviours(context: AgentContext, episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """Behaviours: clusters of windows of what is inside and what is done."""
    blocks = {"inside": values_at(context.subject.agent, episodes), "actions": action_inputs(episodes)}
    clustered = behaviours(blocks, episodes.real, seed=context.subject.seed)
    return {"Behaviour": (clustered.labels, [f"behaviour {number + 1}" for number in range(len(clustered))])}


STEP = Step(
    WORDS.name, WORDS.title, run, ("recording", "world_model", "quality", "bases", "attribution"), nothing_inside
)
