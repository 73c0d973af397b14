"""Step: clusters and maps of the agent's memory and of its world's state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import clusters, concepts, embeddings, samples
from rlhf_ray.interpret.agent.at_hand import action_names, nothing_inside, recorded, scatters, site_name, world_states
from rlhf_ray.interpret.agent.attribution.looked_at import world_of
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME = "clusters"
TITLE = "Clusters and maps of what the agent has in mind"

ROWS = 1200
COLOURINGS = 4
"""Concepts that the maps are coloured by."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to cluster."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Cluster memory, and world states if there are any, in three ways."""
    episodes = recorded(context)
    most = max(200, round(ROWS * min(1.0, context.subject.effort)))
    found = samples.samples(context.subject.agent, episodes, most=most, seed=context.subject.seed)
    spaces: dict[str, FloatArray] = {site_name(context.subject.agent): found.values}
    world = world_of(context)
    if world is not None:
        spaces["world model"] = world_states(world, context.subject.agent, episodes, found.rows, found.steps)
    labels = {name: found.cut(each) for name, each in concepts.library(episodes, action_names(context)).items()}
    varied = [name for name, each in labels.items() if len(np.unique(each[np.isfinite(each)])) > 1]
    rows: list[list[Any]] = []
    checks: list[Check] = []
    pictures: list[Picture] = []
    arrays: dict[str, Any] = {"levels": found.levels, "episodes": found.rows, "steps": found.steps}
    for space, values in spaces.items():
        key = space.replace(" ", "_").replace(".", "_")
        made = {kind: clusters.cluster(values, kind, seed=context.subject.seed) for kind in clusters.KINDS}
        for kind, each in made.items():
            rows.append([space, kind, len(each), f"{each.silhouette:.2f}", f"{each.stability:.2f}"])
            arrays[f"{key}/{kind}"] = each.labels
        best = max(made.values(), key=lambda each: each.silhouette)
        clear = best.silhouette >= clusters.CLEAR and best.stability >= clusters.STABLE
        says = "" if clear else f"The {space} has no clear clusters: their borders are arbitrary."
        bound = f"silhouette at least {clusters.CLEAR}, and stability at least {clusters.STABLE}"
        checks.append(Check(f"the {space} has clear clusters", clear or None, best.silhouette, bound, says))
        colours = {f"clusters ({best.kind})": best.labels} | {name: labels[name] for name in varied[:COLOURINGS]}
        maps = {"t-SNE": embeddings.tsne(values, context.subject.seed)}
        if context.subject.effort >= 1.0:
            try:
                maps["UMAP"] = embeddings.umap(values, context.subject.seed)
            except SettingError as error:
                context.say(str(error))
        for name, points in maps.items():
            arrays[f"{key}/{name}"] = points
            caption = (
                f"{name} of the {space}, coloured by clusters and concepts. Distances between far points mean nothing."
            )
            pictures.append(Picture(f"{key}_{name}", scatters(points, colours), caption))
    np.savez(context.out / "clusters.npz", **arrays)
    columns = ("space", "clusters", "number", "silhouette", "stability")
    caption = "Clusters: silhouette (1: far apart), and adjusted Rand index over resamples (1: the same, 0: chance)."
    values_of = {"clusters": [dict(zip(columns, row, strict=True)) for row in rows]}
    write_text(context.out / "clusters.json", json.dumps(values_of, indent=1) + "\n")
    return Section(
        NAME, TITLE, checks=checks, tables=[Table(columns, rows, caption)], pictures=pictures, values=values_of
    )


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=why_not)
