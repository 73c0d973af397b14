"""Clusters of what an agent has in mind, with their silhouette and their stability under resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.components import enough_of, spectrum

Kind = Literal["kmeans", "hdbscan", "ward"]
KINDS: tuple[Kind, ...] = ("kmeans", "ward", "hdbscan")
MOST = 3000
"""Rows that are clustered: Ward and HDBSCAN compare all with all."""
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
        values: the rows, at most `MOST` for ward and hdbscan.
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
