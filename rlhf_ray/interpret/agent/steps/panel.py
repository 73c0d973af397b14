"""Step: the panel, a static folder that shows what goes on inside the agent."""

from __future__ import annotations

import numpy as np

from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.bases.basis import Basis
from rlhf_ray.interpret.agent.chain import Work
from rlhf_ray.interpret.agent.episodes import Episodes
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.collect import PanelExtras, collect
from rlhf_ray.interpret.agent.panel.pairs import edit_pairs, intervention_pairs
from rlhf_ray.interpret.agent.panel.samples import pieces_of
from rlhf_ray.interpret.agent.recorded import load_episodes
from rlhf_ray.interpret.agent.replay import site_of, values_at
from rlhf_ray.interpret.section import Section, Table

NAME = "panel"
TITLE = "Panel"
AFTER = ("recording", "quality", "bases", "clusters", "behaviours", "attribution", "interventions", "counterfactuals")

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""


def unsuitable(work: Work) -> str | None:
    """Any recorded agent can be shown."""
    return None


def run(work: Work) -> Section:
    """Write the panel to ``work.out``."""
    episodes = load_episodes(
        work.folders["recording"], most=max(FEWEST, round(EPISODES * work.effort)), agent=work.agent
    )
    rng = work.rng(NAME)
    pieces = pieces_of(episodes, max(FEWEST, round(SAMPLES * work.effort)), STEPS, rng)
    site = site_of(work.agent)
    basis = _basis(work, episodes, site)
    batch = work.make_batch(1)
    action_names = list(batch.action_names)
    batch.close()
    shown, _ = intervention_pairs(work.agent, work.make_batch, episodes, pieces, basis, site, PAIRS, work.told)
    work.told("editing levels")
    shown += edit_pairs(work.agent, work.make_batch, episodes, pieces, rng, work.mapper)
    notes = {
        "Agent": f"{work.agent.name}, {work.agent.digest}",
        "Environment": work.environment,
        "Components": f"{len(basis)} {basis.kind} of {site}",
        "Gradients": "of the agent at the recorded step; saliency is gradient times difference from the mean frame",
        "Seed": str(work.seed),
    }
    extras = PanelExtras(pairs=shown, notes=notes)
    title = f"{work.environment}: what goes on inside the agent"
    work.told("gradients of the samples")
    data = collect(
        work.agent, episodes, pieces, basis, site, rng, title=title, action_names=action_names, extras=extras
    )
    write_panel(data, work.out)
    size = sum(file.stat().st_size for file in work.out.rglob("*") if file.is_file())
    table = Table(
        ["samples", "steps", "components", "comparisons", "MB"],
        [[len(data), int(data.lengths.sum()), len(basis), len(shown), round(size / 1e6, 1)]],
        f"Open {NAME}/index.html in a browser: it needs no server and no network.",
    )
    return Section(NAME, TITLE, tables=[table], values={"page": "index.html", "samples": len(data), "bytes": size})


def _basis(work: Work, episodes: Episodes, site: str) -> Basis:
    """The basis of the step "bases", or independent components of the recording."""
    inside = values_at(work.agent, episodes, site)[episodes.real].astype(np.float64)
    return bases.fit("ica", inside, COMPONENTS, seed=work.seed)
