"""Clusters and maps of the agent's memory and of its world's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from rlhf_ray.study.plots import scatters
from rlhf_ray.study.section import Check, Section
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

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
            pictures.append(WORDS.picture("map", scatters(points, colours), f"{key}_{name}", name=name, space=space))
    np.savez(context.out / "clusters.npz", **arrays)
    rows = [
        [space, kind, one.number, f"{one.silhouette:.2f}", f"{one.stability:.2f}"]
        for space, kinds in figures.items()
        for kind, one in kinds.items()
    ]
    return WORDS.section((), _checks(figures), [WORDS.table("clusters", rows)], pictures, figures)


def _maps(context: AgentContext, values: FloatArray) -> dict[str, FloatArray]:
    maps = {"t-SNE": embeddings.tsne(values, context.subject.seed)}
    if context.subject.effort >= 1.0:
        try:
            maps["UMAP"] = embeddings.umap(values, context.subject.seed)
        except SettingError as error:
            context.say(str(error))
    return maps


def _checks(figures: Mapping[str, Mapping[str, Clustering]]) -> Iterator[Check]:
    for space, kinds in figures.items():
        best = max(kinds.values(), key=lambda one: one.silhouette)
        bounds = {"silhouette": clusters.CLEAR, "stability": clusters.STABLE}
        yield WORDS.check("clear", best.clear or None, best.silhouette, space=space, **bounds)


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording", "world_model"), why_not=nothing_inside)
