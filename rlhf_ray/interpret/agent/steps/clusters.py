"""Clusters and maps of the agent's memory and of its world's state, with their silhouette and their stability under resampling."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, silhouette_score

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.steps import concepts
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.agent.world_model.simulate import world_states
from rlhf_ray.interpret.directions.components import enough_of, spectrum
from rlhf_ray.study.plots import scatters
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "clusters", "Clusters and maps of the hidden state"

ROWS, FEWEST = 1200, 200
COLOURINGS = 4
"""Concepts that the maps are coloured by."""
Kind = Literal["kmeans", "hdbscan", "ward"]
KINDS: tuple[Kind, ...] = ("kmeans", "ward", "hdbscan")
COUNTS = (2, 3, 4, 6, 8, 12)
"""Numbers of clusters to choose from, by silhouette."""
RESAMPLES = 5
SHARE = 0.8
"""Share of the rows in each resample."""
CLEAR = 0.25
"""Silhouette below which there is no clear structure (Kaufman and Rousseeuw 1990)."""
STABLE = 0.8
"""Adjusted Rand index from which on clusters count as stable."""


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
        found[space] = kinds = {kind: cluster(values, kind, seed=subject.seed) for kind in KINDS}
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
    maps = {"t-SNE": tsne(values, context.subject.seed)}
    if context.subject.effort >= 1.0:
        try:
            maps["UMAP"] = umap(values, context.subject.seed)
        except SettingError as error:
            context.say(str(error))
    return maps


def _checks(found: Mapping[str, Mapping[Kind, Clusters]]) -> list[Check]:
    bound = f"silhouette ≥ {CLEAR}, stability ≥ {STABLE}"
    checks = []
    for space, kinds in found.items():
        one = max(kinds.values(), key=lambda one: one.silhouette)
        clear = one.silhouette >= CLEAR and one.stability >= STABLE
        arbitrary = "The borders of the clusters are arbitrary."
        checks.append(Check.of(f"clear clusters of the {space}", clear or None, one.silhouette, bound, arbitrary))
    return checks


@dataclass(frozen=True)
class Clusters:
    """Clusters of ``n`` rows."""

    kind: Kind  # kmeans, ward or hdbscan
    labels: IntArray  # ``[n]``: clusters from 0, the largest first; -1 for rows that HDBSCAN leaves out
    silhouette: float  # from -1 to 1; 0 with fewer than two clusters
    # adjusted Rand index between these labels and those of resamples, on the rows that both have; 1 is the same, 0 is chance
    stability: float

    def __len__(self) -> int:
        return int(self.labels.max(initial=-1)) + 1


def cluster(
    values: FloatArray, kind: Kind = "kmeans", count: int | None = None, seed: int = 0, counts: Sequence[int] = COUNTS
) -> Clusters:
    """Cluster rows ``[n, size]``, in the space of the principal components that explain 95 % of their variance.

    HDBSCAN chooses the number of clusters itself; the other kinds take ``count``, or the one of ``counts`` with the largest
    silhouette.
    """
    points = principal(values)
    if not points.shape[1] or len(points) < 4:
        return Clusters(kind, np.zeros(len(points), np.int64), 0.0, 1.0)
    if kind != "hdbscan" and count is None:
        tried = {each: _labels(points, kind, each, seed) for each in counts if each < len(points) / 2} or {
            1: np.zeros(len(points), np.int64)
        }
        count = max(tried, key=lambda each: _silhouette(points, tried[each], seed))
    labels = _labels(points, kind, count or 1, seed)
    agreements = []
    for at in range(RESAMPLES):
        rng = np.random.default_rng([seed, at, 0xC1])
        rows = np.sort(rng.choice(len(points), max(4, round(SHARE * len(points))), replace=False))
        again = _labels(points[rows], kind, count or 1, int(rng.integers(2**31)))
        agreements.append(adjusted_rand_score(labels[rows], again))
    return Clusters(kind, labels, _silhouette(points, labels, seed), float(np.mean(agreements)))


def principal(values: FloatArray) -> FloatArray:
    """Return the scores ``[n, k]`` of the principal components that explain 95 % of the variance; none if nothing varies."""
    rows = np.asarray(values, np.float64)
    spread, axes = spectrum(rows)
    if not len(spread):
        return np.zeros((len(rows), 0))
    return np.asarray((rows - rows.mean(0)) @ axes[: enough_of(spread)].T)


def _labels(points: FloatArray, kind: Kind, count: int, seed: int) -> IntArray:
    if kind == "hdbscan":
        found = HDBSCAN(min_cluster_size=max(5, len(points) // 50), copy=True).fit_predict(points)
    elif kind == "ward":
        found = AgglomerativeClustering(min(count, len(points))).fit_predict(points)
    else:
        distinct = len(np.unique(points.round(9), axis=0))
        found = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
    return by_size(found)


def by_size(labels: IntArray) -> IntArray:
    """Number clusters from the largest to the smallest; -1 stays."""
    names, sizes = np.unique(labels[labels >= 0], return_counts=True)
    order = names[np.argsort(-sizes, kind="stable")]
    new = np.full(len(labels), -1, np.int64)
    for at, name in enumerate(order):
        new[labels == name] = at
    return new


def _silhouette(points: FloatArray, labels: IntArray, seed: int) -> float:
    kept = labels >= 0
    kinds = len(np.unique(labels[kept]))
    if kinds < 2 or kept.sum() <= kinds:
        return 0.0
    rows = np.flatnonzero(kept)
    if len(rows) > 1000:
        some = np.random.default_rng([seed, 0x51]).choice(rows, 1000, replace=False)
        rows = some if len(np.unique(labels[some])) > 1 else rows
    return float(silhouette_score(points[rows], labels[rows]))


def tsne(values: FloatArray, seed: int = 0) -> FloatArray:
    """Return t-SNE's positions ``[n, 2]`` of ``values`` ``[n, size]``, started at the first two principal components."""
    points = principal(values)
    if len(points) < 5 or not points.shape[1]:
        return _plain(points)
    start = _plain(points) / max(float(points[:, 0].std()), 1e-12) * 1e-4
    model = TSNE(2, perplexity=min(30.0, (len(points) - 1) / 3), init=start, random_state=seed, max_iter=500)
    return np.asarray(model.fit_transform(points), np.float64)


def umap(values: FloatArray, seed: int = 0) -> FloatArray:
    """Return UMAP's positions ``[n, 2]`` of ``values`` ``[n, size]``.

    Raises:
        SettingError: umap-learn isn't installed.
    """
    try:
        from umap import UMAP
    except ImportError:
        raise SettingError("UMAP needs umap-learn: install rlhf-ray[interpret], or use t-SNE.") from None
    points = principal(values)
    if len(points) < 5 or not points.shape[1]:
        return _plain(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed means one thread
        model = UMAP(n_neighbors=min(15, len(points) - 1), random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), np.float64)


def _plain(points: FloatArray) -> FloatArray:
    """Return the first two columns, padded with zeros."""
    return np.pad(points[:, :2], [(0, 0), (0, 2 - min(2, points.shape[1]))])


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=nothing_inside)
