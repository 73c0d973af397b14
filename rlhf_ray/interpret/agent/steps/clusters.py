"""Clusters and maps of the agent's memory and of its world's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import clusters, concepts, embeddings, samples
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.interpret.agent.world_model.played import world_states
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import scatters
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "clusters", "Clusters and maps of the hidden state"

ROWS, FEWEST = 1200, 200
COLOURINGS = 4
"""Concepts that the maps are coloured by."""


@dataclass(frozen=True)
class Clustering:
    """Clusters of one kind: how many, and how far apart and stable they are; see `rlhf_ray.interpret.agent.clusters.Clusters`."""

    number: int
    silhouette: float
    stability: float

    @property
    def clear(self) -> bool:
        """Whether there is clear structure."""
        return self.silhouette >= clusters.CLEAR and self.stability >= clusters.STABLE


def run(context: AgentContext) -> Section:
    """Cluster memory, and world states if there are any, in three ways."""
    subject, episodes = context.subject, recorded(context)
    count = max(FEWEST, round(ROWS * min(1.0, subject.effort)))
    inside = samples.samples(subject.agent, episodes, most=count, seed=subject.seed)
    spaces: dict[str, FloatArray] = {subject.site_name: inside.values}
    world = world_of(context)
    if world is not None:
        spaces["world model"] = world_states(world, subject.agent, episodes, inside)
    labels = {name: inside.cut(label) for name, label in concepts.library(episodes, subject.action_names).items()}
    varied = [name for name, label in labels.items() if len(np.unique(label[np.isfinite(label)])) > 1]
    figures: dict[str, dict[str, Clustering]] = {}
    pictures = []
    arrays: dict[str, Any] = {"levels": inside.levels, "episodes": inside.rows, "steps": inside.steps}
    for space, values in spaces.items():
        key = space.replace(" ", "_").replace(".", "_")
        kinds = {kind: clusters.cluster(values, kind, seed=subject.seed) for kind in clusters.KINDS}
        figures[space] = {kind: Clustering(len(one), one.silhouette, one.stability) for kind, one in kinds.items()}
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
        [space, kind, one.number, f"{one.silhouette:.2f}", f"{one.stability:.2f}"]
        for space, kinds in figures.items()
        for kind, one in kinds.items()
    ]
    caption = "Silhouette (1: far apart), and adjusted Rand index over resamples (1: the same, 0: chance)."
    table = Table(["space", "clusters", "number", "silhouette", "stability"], rows, caption)
    return Section(NAME, TITLE, _checks(figures), (), [table], pictures, (), values_of(figures))


def _maps(context: AgentContext, values: FloatArray) -> dict[str, FloatArray]:
    maps = {"t-SNE": embeddings.tsne(values, context.subject.seed)}
    if context.subject.effort >= 1.0:
        try:
            maps["UMAP"] = embeddings.umap(values, context.subject.seed)
        except SettingError as error:
            context.say(str(error))
    return maps


def _checks(figures: Mapping[str, Mapping[str, Clustering]]) -> list[Check]:
    bound, remedy = (
        f"silhouette ≥ {clusters.CLEAR}, stability ≥ {clusters.STABLE}",
        "The borders of the clusters are arbitrary.",
    )
    best = {space: max(kinds.values(), key=lambda one: one.silhouette) for space, kinds in figures.items()}
    return [
        Check(
            f"clear clusters of the {space}",
            one.clear or None,
            one.silhouette,
            None,
            None,
            bound,
            "" if one.clear else remedy,
        )
        for space, one in best.items()
    ]


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=nothing_inside)
