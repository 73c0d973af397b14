"""Behaviours, which are clusters of short windows of memory, world state and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes, StepBatch, action_inputs
from rlhf_ray.agents.play import values_at
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.steps import concepts
from rlhf_ray.interpret.agent.steps.clusters import COUNTS, STABLE, Clusters, cluster, principal
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.agent.world_model.simulate import world_states
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "behaviours", "Behaviours"

TRIED = (4, 6, 8, 10)
"""Numbers of behaviours to choose from, by silhouette."""
LENGTH = 5
CLUSTERED = 2500
"""Windows that are clustered; the others get the label of the nearest of them."""
SHOWN = 3
"""Windows of each behaviour in the picture."""
MARKS = 4
"""Concepts that describe a behaviour: those that differ most from the other behaviours."""
FILE = "behaviours.npz"


def behaviour_labels(context: AgentContext, episodes: Episodes) -> IntArray:
    """Return the behaviour of each step ``[n, T]``; one behaviour if this step did not run on the same episodes."""
    folder = context.folders.get(NAME)
    if folder is not None and (folder / FILE).exists():
        with np.load(folder / FILE, allow_pickle=False) as file:
            labels, levels = file["labels"], file["levels"]
        if labels.shape == episodes.real.shape and np.array_equal(levels, episodes.levels):
            return np.asarray(labels)
    return np.where(episodes.real, 0, -1)


def run(context: AgentContext) -> Section:
    """Cluster windows, and describe each cluster by what is different in it."""
    subject, episodes = context.subject, recorded(context)
    blocks: dict[str, FloatArray] = {"memory": values_at(subject.agent, episodes)}
    world = world_of(context)
    if world is not None:
        blocks["world model"] = np.zeros((*episodes.real.shape, world.size))
        every = StepBatch(*np.nonzero(episodes.real))
        blocks["world model"][episodes.real] = world_states(world, subject.agent, episodes, every)
    blocks["actions"] = action_inputs(episodes.actions, subject.agent.action_space)
    clustered = behaviours(blocks, episodes.real, seed=subject.seed, counts=TRIED)
    np.savez(context.out / FILE, labels=clustered.labels, levels=episodes.levels)
    described = _describe(concepts.library(episodes, subject.action_names), clustered)
    silhouette, stability = clustered.clusters.silhouette, clustered.clusters.stability
    figures = {"blocks": list(blocks), "length": clustered.length, "silhouette": silhouette, "stability": stability}
    rows = []
    for name, one in described.items():
        told = ", ".join(
            f"{mark} {inside:.2f} (else {outside:.2f})" for mark, (inside, outside) in one["marks"].items()
        )
        rows.append([name, one["windows"], f"{one['share']:.0%}", told])
    remedy = "The borders between behaviours depend on the sample: read them as a rough map."
    check = Check.of("behaviours found again", stability >= STABLE or None, stability, f"≥ {STABLE}", remedy)
    caption = (
        f"Clusters of windows of {clustered.length} steps of {', '.join(blocks)}, and the concepts that differ most from the other "
        "windows (mean in the behaviour, mean elsewhere)."
    )
    table = Table(["behaviour", "windows", "share", "what differs"], rows, caption)
    pictures = []
    if is_image(subject.agent.observation_space):
        caption = f"The most typical windows of each behaviour: {SHOWN} of {clustered.length} steps side by side."
        pictures = [Picture("behaviours", _draw(episodes, clustered), caption)]
    return Section(NAME, TITLE, [check], (), [table], pictures, (), values_of({**figures, "behaviours": described}))


def _describe(library: Mapping[str, FloatArray], clustered: Behaviours) -> dict[str, dict[str, Any]]:
    """Describe behaviours: windows, their share of all, and the concepts that differ most: mean in it, mean elsewhere."""
    means: dict[str, tuple[FloatArray, FloatArray, float]] = {}
    for name, concept in library.items():
        now = concept[:, :-1]
        known = np.isfinite(now) & (clustered.labels >= 0)
        spread = float(now[known].std()) if known.any() else 0.0
        if spread >= 1e-9:
            inside = shares(clustered.labels, now)[: len(clustered)]
            elsewhere = [now[known & (clustered.labels != number)] for number in range(len(clustered))]
            outside = np.array([values.mean() if values.size else np.nan for values in elsewhere])
            means[name] = inside, outside, spread
    described = {}
    for number in range(len(clustered)):
        away = {
            name: abs(inside[number] - outside[number]) / spread for name, (inside, outside, spread) in means.items()
        }
        names = sorted((name for name, size in away.items() if np.isfinite(size)), key=lambda name: -away[name])
        marks = {name: (float(means[name][0][number]), float(means[name][1][number])) for name in names[:MARKS]}
        windows = int((clustered.clusters.labels == number).sum())
        described[f"B{number}"] = {
            "windows": windows,
            "share": windows / len(clustered.clusters.labels),
            "marks": marks,
        }
    return described


def _draw(episodes: Episodes, clustered: Behaviours) -> bytes:
    """Draw the most typical windows of each behaviour, one below the other."""
    length, starts = clustered.length, clustered.starts
    frames = np.full((len(clustered), SHOWN * length, *episodes.observations.shape[2:]), 255, np.uint8)
    for row, examples in enumerate(clustered.examples):
        first = np.sort(np.unique(starts.rows[examples], return_index=True)[1])[:SHOWN]  # of different episodes
        for place, example in enumerate(examples[first]):
            steps = starts.steps[example] + np.arange(length)
            frames[row, place * length : (place + 1) * length] = episodes.observations[starts.rows[example], steps]
    rows = [f"B{row}" for row in range(len(clustered))]
    return strip(frames, None, rows, [f"+{step}" for step in range(length)] * SHOWN)


@dataclass(frozen=True)
class Behaviours:
    """Which behaviour each step belongs to."""

    # ``[n, T]``: the behaviour of the window that starts at a step; that of the episode's last window near its end; -1 after the
    # end, and in windows that no cluster holds
    labels: IntArray
    clusters: Clusters  # the clusters of the windows that were clustered
    starts: StepBatch  # where each of those windows starts, ``m`` moments
    examples: Sequence[IntArray]  # for each behaviour, rows of these windows, the most typical first
    length: int  # steps in a window

    def __len__(self) -> int:
        return len(self.clusters)


def windows(
    blocks: Mapping[str, FloatArray], real: BoolArray, length: int = LENGTH
) -> tuple[FloatArray, IntArray, IntArray]:
    """Cut windows of ``length`` steps, or as many as the longest episode has, that lie within an episode.

    Each of ``blocks`` ``[n, T, k]`` counts as much as any other, however wide it is; ``real`` ``[n, T]``: which are no padding.

    Returns:
        Features ``[m, …]``, and the episode and first step of each window.
    """
    lengths = real.sum(1)
    length = min(length, int(lengths.max()))
    starts = [(row, step) for row, steps in enumerate(lengths) for step in range(int(steps) - length + 1)]
    rows, steps = np.array(starts, np.int64).T
    at = steps[:, None] + np.arange(length)
    parts = []
    for values in blocks.values():
        flat = np.asarray(values, np.float64).reshape(*real.shape, -1)
        seen = principal(flat[real])
        total = float(np.sqrt(seen.var(0).sum()))
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
    count: int | None = None,
    seed: int = 0,
    counts: Sequence[int] = COUNTS,
) -> Behaviours:
    """Cluster windows of ``blocks``, for example memory, world and actions, into behaviours. See `windows` and `cluster`."""
    features, rows, steps = windows(blocks, real, length)
    lengths = real.sum(1)
    length = min(length, int(lengths.max()))
    rng = np.random.default_rng([seed, 0xBE])
    some = np.sort(rng.choice(len(rows), CLUSTERED, replace=False)) if len(rows) > CLUSTERED else np.arange(len(rows))
    found = cluster(features[some], "kmeans", count, seed, counts)
    centers = np.stack([features[some][found.labels == at].mean(0) for at in range(len(found))])
    labels = np.full(real.shape, -1, np.int64)
    labels[rows, steps] = ((centers**2).sum(1) - 2.0 * features @ centers.T).argmin(1)
    labels[rows[some], steps[some]] = found.labels
    last = np.maximum(lengths - length, 0)
    after = (np.arange(real.shape[1])[None] > last[:, None]) & real
    labels = np.where(after, np.take_along_axis(labels, last[:, None], 1), labels)
    examples = []
    for at, center in enumerate(centers):
        own = np.flatnonzero(found.labels == at)
        examples.append(own[np.argsort(((features[some][own] - center) ** 2).sum(1), kind="stable")])
    return Behaviours(labels, found, StepBatch(rows[some], steps[some]), examples, length)


def shares(labels: IntArray, concept: Array) -> FloatArray:
    """Return the mean of a concept ``[n, T]`` in each behaviour; NaN where it is not defined."""
    known = np.isfinite(concept) & (labels >= 0)
    sums = np.bincount(labels[known], concept[known], minlength=int(labels.max(initial=-1)) + 1)
    counts = np.bincount(labels[known], minlength=len(sums))
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=nothing_inside)
