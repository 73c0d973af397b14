"""Behaviours: clusters of short windows of what an agent has in mind, of its world's state, and of its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.agents.moments import Moments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.agent.clusters import COUNTS, KINDS, Clusters, Kind, cluster, principal

LENGTH = 5
MOST = 2500
"""Windows that are clustered; the others get the label of the nearest of them."""
__all__ = ["KINDS", "Behaviours", "Kind", "behaviours", "windows"]


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
    some = np.sort(rng.choice(len(rows), MOST, replace=False)) if len(rows) > MOST else np.arange(len(rows))
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
