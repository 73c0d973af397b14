"""Clusters and maps of the agent's memory and of its world's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import clusters, concepts
from rlhf_ray.interpret.agent.clusters import Clusters, Kind
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.agent.world_model.simulate import world_states
from rlhf_ray.study.plots import scatters
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "clusters", "Clusters and maps of the hidden state"

ROWS, FEWEST = 1200, 200
COLOURINGS = 4
"""Concepts that the maps are coloured by."""


def run(context: AgentContext) -> Section:
    """Cluster memory, and world states if there are any, in three ways."""
    subject, episodes = context.subject, recorded(context)
    count = max(FEWEST, round(ROWS * min(1.0, subject.effort)))
    inside = concepts.samples(subject.agent, episodes, most=count, seed=subject.seed)
    spaces: dict[str, FloatArray] = {subject.site_name: inside.values}
    world = world_of(context)
    if world is not None:
        spaces["world model"] = world_states(world, subject.agent, episodes, inside)
    labels = {name: inside.cut(label) for name, label in concepts.library(episodes, subject.action_names).items()}
    varied = [name for name, label in labels.items() if len(np.unique(label[np.isfinite(label)])) > 1]
    found: dict[str, dict[Kind, Clusters]] = {}
    pictures = []
    arrays: dict[str, Any] = {"levels": inside.levels, "episodes": inside.rows, "steps": inside.steps}
    for space, values in spaces.items():
        key = space.replace(" ", "_").replace(".", "_")
        found[space] = kinds = {kind: clusters.cluster(values, kind, seed=subject.seed) for kind in clusters.KINDS}
        arrays |= {f"{key}/{kind}": one.labels for kind, one in kinds.items()}
        best = max(kinds.values(), key=lambda one: one.silhouette)
        colours = {f"clusters ({best.kind})": best.labels} | {name: labels[name] for name in varied[:COLOURINGS]}
        for name, points in _maps(context, values).items():
            arrays[f"{key}/{name}"] = points
            caption = (
                f"{name} of the {space}, coloured by clusters and concepts. Distances between far points mean nothing."
            )
            pictures.append(Picture(f"{key}_{name}", scatters(points, colours), caption))
    np.savez(context.out / "clusters.npz", **arrays)
    rows = [
        [space, kind, len(one), f"{one.silhouette:.2f}", f"{one.stability:.2f}"]
        for space, kinds in found.items()
        for kind, one in kinds.items()
    ]
    caption = "Silhouette (1: far apart), and adjusted Rand index over resamples (1: the same, 0: chance)."
    table = Table(["space", "clusters", "number", "silhouette", "stability"], rows, caption)
    figures = {
        space: {
            kind: {"number": len(one), "silhouette": one.silhouette, "stability": one.stability}
            for kind, one in of.items()
        }
        for space, of in found.items()
    }
    return Section(NAME, TITLE, _checks(found), (), [table], pictures, (), figures)


def _maps(context: AgentContext, values: FloatArray) -> dict[str, FloatArray]:
    maps = {"t-SNE": clusters.tsne(values, context.subject.seed)}
    if context.subject.effort >= 1.0:
        try:
            maps["UMAP"] = clusters.umap(values, context.subject.seed)
        except SettingError as error:
            context.say(str(error))
    return maps


def _checks(found: Mapping[str, Mapping[Kind, Clusters]]) -> list[Check]:
    bound = f"silhouette ≥ {clusters.CLEAR}, stability ≥ {clusters.STABLE}"
    checks = []
    for space, kinds in found.items():
        one = max(kinds.values(), key=lambda one: one.silhouette)
        clear = one.silhouette >= clusters.CLEAR and one.stability >= clusters.STABLE
        remedy = "" if clear else "The borders of the clusters are arbitrary."
        checks.append(Check(f"clear clusters of the {space}", clear or None, one.silhouette, None, None, bound, remedy))
    return checks


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=nothing_inside)
