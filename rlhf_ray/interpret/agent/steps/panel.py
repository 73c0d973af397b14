"""Step: the panel, a static folder that shows what goes on inside the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.agent import MEMORY
from rlhf_ray.interpret.agent.at_hand import nothing_inside, site_name
from rlhf_ray.interpret.agent.attribution.looked_at import basis_of, episodes_of, valid_horizon, world_of
from rlhf_ray.interpret.agent.attribution.samples import GradientSamples
from rlhf_ray.interpret.agent.bases.basis import Basis
from rlhf_ray.interpret.agent.behaviours import action_inputs, behaviours
from rlhf_ray.interpret.agent.chain import Work
from rlhf_ray.interpret.agent.episodes import Episodes
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.ahead import WAY_NAMES, effects_ahead
from rlhf_ray.interpret.agent.panel.collect import PanelExtras, collect
from rlhf_ray.interpret.agent.panel.data import PanelPair
from rlhf_ray.interpret.agent.panel.pairs import edit_pairs, intervention_pairs, simulated_pairs
from rlhf_ray.interpret.agent.panel.samples import Pieces, StepEffects, pieces_of
from rlhf_ray.interpret.agent.replay import site_of, values_at
from rlhf_ray.interpret.section import Section, Table

NAME = "panel"
TITLE = "Panel"
AFTER = ("recording", "world_model", "quality", "bases", "attribution")

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""


def unsuitable(work: Work) -> str | None:
    """Return why there is nothing to show; None otherwise."""
    return nothing_inside(work)


def run(work: Work) -> Section:
    """Write the panel to ``work.out``."""
    episodes = episodes_of(work, max(FEWEST, round(EPISODES * work.effort)))
    rng = work.rng(NAME)
    pieces = pieces_of(episodes, max(FEWEST, round(SAMPLES * work.effort)), STEPS, rng)
    site = site_of(work.agent)
    basis = _basis(work, episodes, site)
    ahead, estimator = _ahead(work, pieces, basis, site)
    batch = work.make_batch(1)
    action_names = list(batch.action_names)
    batch.close()
    pairs = _pairs(work, episodes, pieces, basis, site, rng)
    notes = {
        "Agent": f"{work.agent.name}, {work.agent.digest}",
        "Environment": work.environment,
        "Components": f"the {len(basis)} {bases.TITLES[basis.kind]} of its {site_name(work.agent)}, with the report's numbers",
        "Behaviours": "clusters of what is inside and done in these samples; not those of the report",
        "Value and likeliest action": "at each step: gradient times the difference from the mean frame or memory",
        "Seed": str(work.seed),
    }
    if estimator:
        notes["Some steps on"] = f"gradients through the steps in between ({estimator})"
    extras = PanelExtras(
        pairs=pairs, labels=_behaviours(work, episodes), ahead=ahead, way_names=WAY_NAMES if ahead else (),
        horizon=valid_horizon(work), notes=notes,
    )  # fmt: skip
    work.told("gradients of the samples")
    title = f"{work.environment.removeprefix('rlhf_ray/')}: what goes on inside the agent"
    data = collect(
        work.agent, episodes, pieces, basis, site, rng,
        title=title, seed=work.seed, action_names=action_names, extras=extras,
    )  # fmt: skip
    write_panel(data, work.out)
    size = sum(file.stat().st_size for file in work.out.rglob("*") if file.is_file())
    table = Table(
        ["samples", "steps", "components", "comparisons", "MB"],
        [[len(data), int(data.lengths.sum()), len(basis), len(pairs), round(size / 1e6, 1)]],
        f"Open {NAME}/index.html in a browser: it needs no server and no network.",
    )
    values: dict[str, Any] = {"page": "index.html", "samples": len(data), "comparisons": len(pairs), "bytes": size}
    return Section(NAME, TITLE, tables=[table], values=values)


def _basis(work: Work, episodes: Episodes, site: str) -> Basis:
    """The basis of the step "bases"; without one, independent components. Names are short: "component 3"."""
    found = basis_of(work) if site == MEMORY else None
    if found is None:
        inside = values_at(work.agent, episodes, site)[episodes.real].astype(np.float64)
        found = bases.fit("ica", inside, COMPONENTS, seed=work.seed)
    names = found.names if found.kind in bases.LABELLED else [f"component {at}" for at in range(len(found))]
    return cast(Basis, replace(cast(Any, found), names=names))


def _ahead(work: Work, pieces: Pieces, basis: Basis, site: str) -> tuple[StepEffects | None, str]:
    """What quantities some steps on depend on, from the step "attribution", and its estimator."""
    folder = work.folders.get("attribution")
    if folder is None or site != MEMORY:
        return None, ""
    try:
        samples = GradientSamples.load(folder)
    except SettingError:
        return None, ""
    return effects_ahead(samples, pieces, basis), samples.estimator


def _pairs(
    work: Work, episodes: Episodes, pieces: Pieces, basis: Basis, site: str, rng: np.random.Generator
) -> list[PanelPair]:
    pairs, components = intervention_pairs(work.agent, work.make_batch, episodes, pieces, basis, site, PAIRS, work.told)
    work.told("editing levels")
    pairs += edit_pairs(work.agent, work.make_batch, episodes, pieces, rng, work.mapper)
    if (world := world_of(work)) is not None:
        work.told("the same inside the world model")
        pairs += simulated_pairs(work.agent, world, episodes, pieces, basis, site, components)
    return pairs


def _behaviours(work: Work, episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """Behaviours: clusters of windows of what is inside and what is done."""
    blocks = {"inside": values_at(work.agent, episodes), "actions": action_inputs(episodes)}
    found = behaviours(blocks, episodes.real, seed=work.seed)
    return {"Behaviour": (found.labels, [f"behaviour {number + 1}" for number in range(len(found))])}
