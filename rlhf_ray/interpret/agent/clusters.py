"""Clusters of what an agent has in mind, with their silhouette and their stability under resampling."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, silhouette_score

from rlhf_ray.agents.episodes import Moments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.components import enough_of, spectrum

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


@dataclass(frozen=True)
class Clusters:
    """Clusters of ``n`` rows.

    Attributes:
        kind: kmeans, ward or hdbscan.
        labels: ``[n]``: clusters from 0, the largest first; -1 for rows that HDBSCAN leaves out.
        silhouette: from -1 to 1; 0 with fewer than two clusters.
        stability: adjusted Rand index between these labels and those of resamples, on the rows that both have; 1 is the same, 0 is
            chance.
    """

    kind: Kind
    labels: IntArray
    silhouette: float
    stability: float

    def __len__(self) -> int:
        return int(self.labels.max(initial=-1)) + 1


def cluster(
    values: FloatArray,
    kind: Kind = "kmeans",
    count: int | None = None,
    seed: int = 0,
    counts: Sequence[int] = COUNTS,
    resamples: int = RESAMPLES,
) -> Clusters:
    """Cluster rows ``[n, size]``, in the space of the principal components that explain 95 % of their variance.

    Args:
        values: the rows.
        kind: kmeans, hdbscan (chooses the number of clusters itself) or ward.
        count: number of clusters; None: the one of ``counts`` with the largest silhouette.
        seed: draws.
        counts: see ``count``.
        resamples: how many for the stability.

    Raises:
        SettingError: unknown kind.
    """
    if kind not in KINDS:
        raise SettingError(f"There are no clusters of kind {kind!r}: choose {', '.join(KINDS)}.")
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
    for at in range(resamples):
        rng = np.random.default_rng([seed, at, 0xC1])
        rows = np.sort(rng.choice(len(points), max(4, round(SHARE * len(points))), replace=False))
        again = _labels(points[rows], kind, count or 1, int(rng.integers(2**31)))
        agreements.append(adjusted_rand_score(labels[rows], again))
    stability = float(np.mean(agreements)) if agreements else 1.0
    return Clusters(kind, labels, _silhouette(points, labels, seed), stability)


def principal(values: FloatArray, share: float = 0.95) -> FloatArray:
    """Return the scores ``[n, k]`` of the principal components that explain ``share`` of the variance; none if nothing varies."""
    rows = np.asarray(values, np.float64)
    spread, axes = spectrum(rows)
    if not len(spread):
        return np.zeros((len(rows), 0))
    found: FloatArray = (rows - rows.mean(0)) @ axes[: enough_of(spread, share)].T
    return found


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


def tsne(values: FloatArray, seed: int = 0, perplexity: float = 30.0) -> FloatArray:
    """Return t-SNE's positions ``[n, 2]`` of ``values`` ``[n, size]``, started at the first two principal components."""
    points = principal(values)
    if len(points) < 5 or not points.shape[1]:
        return _plain(points)
    start = _plain(points) / max(float(points[:, 0].std()), 1e-12) * 1e-4
    model = TSNE(2, perplexity=min(perplexity, (len(points) - 1) / 3), init=start, random_state=seed, max_iter=500)
    return np.asarray(model.fit_transform(points), np.float64)


def umap(values: FloatArray, seed: int = 0, neighbours: int = 15) -> FloatArray:
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
        model = UMAP(n_neighbors=min(neighbours, len(points) - 1), random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), np.float64)


def _plain(points: FloatArray) -> FloatArray:
    """Return the first two columns, padded with zeros."""
    return np.pad(points[:, :2], [(0, 0), (0, 2 - min(2, points.shape[1]))])


LENGTH = 5
CLUSTERED = 2500
"""Windows that are clustered; the others get the label of the nearest of them."""


@dataclass(frozen=True)
class Behaviours:
    """Which behaviour each step belongs to.

    Attributes:
        labels: ``[n, T]``: the behaviour of the window that starts at a step; that of the episode's last window near its end; -1
            after the end, and in windows that no cluster holds.
        clusters: the clusters of the windows that were clustered.
        starts: where each of those windows starts, ``m`` moments.
        examples: for each behaviour, rows of these windows, the most typical first.
        length: steps in a window.
    """

    labels: IntArray
    clusters: Clusters
    starts: Moments
    examples: Sequence[IntArray]
    length: int

    def __len__(self) -> int:
        return len(self.clusters)


def windows(
    blocks: Mapping[str, FloatArray], real: BoolArray, length: int = LENGTH
) -> tuple[FloatArray, IntArray, IntArray]:
    """Cut windows of ``length`` steps that lie within an episode.

    Args:
        blocks: what to look at, ``[n, T, k]`` each. Each block counts as much as any other, however wide it is.
        real: which steps are no padding, ``[n, T]``.
        length: steps; no more than the longest episode has.

    Returns:
        Features ``[m, …]``, and the episode and first step of each window.
    """
    lengths = real.sum(1)
    length = int(min(length, max(1, lengths.max(initial=1))))
    starts = [(row, step) for row, steps in enumerate(lengths) for step in range(int(steps) - length + 1)]
    rows, steps = np.array(starts, np.int64).reshape(-1, 2).T
    if not blocks or not len(rows):
        return np.zeros((len(rows), 0)), rows, steps
    at = steps[:, None] + np.arange(length)
    parts = []
    for values in blocks.values():
        flat = np.asarray(values, np.float64).reshape(*real.shape, -1)
        seen = principal(flat[real])
        total = float(np.sqrt(seen.var(0).sum())) if seen.size else 0.0
        if total < 1e-9:
            continue
        scores = np.zeros((*real.shape, seen.shape[1]))
        scores[real] = seen / total
        parts.append(scores[rows[:, None], at].reshape(len(rows), -1))
    return np.concatenate([np.zeros((len(rows), 0)), *parts], 1), rows, steps


def behaviours(
    blocks: Mapping[str, FloatArray],
    real: BoolArray,
    length: int = LENGTH,
    kind: Kind = "kmeans",
    count: int | None = None,
    seed: int = 0,
    counts: Sequence[int] = COUNTS,
) -> Behaviours:
    """Cluster windows of ``blocks`` into behaviours.

    Args:
        blocks: ``[n, T, k]`` by name, for example memory, world and actions: any of them.
        real: which steps are no padding, ``[n, T]``.
        length: steps in a window.
        kind: of the clusters.
        count: how many; None: the one of ``counts`` with the largest silhouette.
        seed: draws.
        counts: see ``count``.
    """
    features, rows, steps = windows(blocks, real, length)
    length = int(min(length, max(1, real.sum(1).max(initial=1))))
    rng = np.random.default_rng([seed, 0xBE])
    some = np.sort(rng.choice(len(rows), CLUSTERED, replace=False)) if len(rows) > CLUSTERED else np.arange(len(rows))
    found = cluster(features[some], kind, count, seed, counts)
    centers = np.stack(
        [features[some][found.labels == at].mean(0) for at in range(len(found))] or [np.zeros(features.shape[1])]
    )
    labels = np.full(real.shape, -1, np.int64)
    if len(rows):
        labels[rows, steps] = _nearest(features, centers) if len(found) else -1
        labels[rows[some], steps[some]] = found.labels
    lengths = real.sum(1)
    last = np.maximum(lengths - length, 0)
    after = (np.arange(real.shape[1])[None] > last[:, None]) & real
    if real.size:
        labels = np.where(after, np.take_along_axis(labels, last[:, None], 1), labels)
    examples = []
    for at, center in enumerate(centers[: len(found)]):
        own = np.flatnonzero(found.labels == at)
        examples.append(own[np.argsort(((features[some][own] - center) ** 2).sum(1), kind="stable")])
    return Behaviours(labels, found, Moments(rows[some], steps[some]), examples, length)


def shares(labels: IntArray, concept: Array) -> FloatArray:
    """Return the mean of a concept ``[n, T]`` in each behaviour; NaN where it is not defined."""
    known = np.isfinite(concept) & (labels >= 0)
    sums = np.bincount(labels[known], concept[known], minlength=int(labels.max(initial=-1)) + 1)
    counts = np.bincount(labels[known], minlength=len(sums))
    found: FloatArray = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return found


def _nearest(features: FloatArray, centers: FloatArray) -> IntArray:
    squares = (centers**2).sum(1) - 2.0 * features @ centers.T
    return np.asarray(squares.argmin(1))
