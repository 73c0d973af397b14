"""Simple summaries of steps that tell the reward: brightness, positions, counts of objects, features, the action, the time.

An exchange of regions finds *where* a reward looks. What it computes there is often one number that has a plain name: how bright
the image is, how many goals there are, how far to the right the cart is. This module tries such numbers, and says how much of the
variance of the reward, and of the true reward, each tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import Regions

BINS = 20
"""Levels of a summary, of equal numbers of steps, unless it has fewer values."""
TELLS = 0.9
"""Share of the reward's variance that a summary must tell to be named."""
SIDE = ("the state", "the next state")
CHANGE, TERMINATES = "the change of ", "whether the step terminates the episode"


@dataclass(frozen=True)
class Summary:
    """A number that summarises steps.

    Attributes:
        name: in words.
        tells: share of the reward's variance that it tells: that of a line within each of its levels.
        tells_truth: as ``tells``, of the true reward; None if that is unknown or constant.
        low, high: the summary's level of the lowest and of the highest mean reward, with that mean, in words.
    """

    name: str
    tells: float
    tells_truth: float | None
    low: str
    high: str


def summaries(
    given: FloatArray,
    data: Transitions,
    regions: Regions | None,
    objects: Mapping[str, int] | None = None,
    ignored: Sequence[str] = (),
) -> list[Summary]:
    """Find summaries that tell the reward, the most telling first.

    Args:
        given: ``[n]``: the reward of each step.
        data: the steps.
        regions: parts of the observations; None for tables.
        objects: object codes by name, for grids.
        ignored: inputs and regions that the reward does not depend on: what tells it by these only goes with its cause.

    Returns:
        Those that tell at least `TELLS` of its variance. Of equal ones, the simplest first.
    """
    truth = data.rewards if np.isfinite(data.rewards).all() and np.ptp(data.rewards) > 0 else None
    found = []
    for name, values in _numbers(data, regions, {float(code): word for word, code in (objects or {}).items()}):
        if len(data) < 2 * BINS or np.ptp(values) <= 0 or any(_reads(name, part) for part in ignored):
            continue
        levels = _levels(values)
        share, means = _told(given, levels, values)
        if share < TELLS:
            continue
        ends = [_words(values[levels == at], means[at]) for at in (int(np.argmin(means)), int(np.argmax(means)))]
        found.append(Summary(name, share, None if truth is None else max(0.0, _told(truth, levels, values)[0]), *ends))
    return sorted(found, key=lambda each: -round(each.tells, 2))


def _reads(summary: str, part: str) -> bool:
    """Return whether a summary is one of an input or of a region, by their names."""
    if part in SIDE:
        return summary.endswith((f" in {part}", f" of {part}")) or summary.startswith(CHANGE)
    if part == "the termination flag":
        return summary == TERMINATES
    return summary in (part, CHANGE + part, *(f"{part} in {side}" for side in SIDE))


def _levels(values: FloatArray) -> Array:
    distinct, which = np.unique(values, return_inverse=True)
    if len(distinct) > BINS:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
        which = np.unique(np.searchsorted(edges, values, "right"), return_inverse=True)[1]
    return np.asarray(which)


def _told(rewards: FloatArray, levels: Array, values: FloatArray) -> tuple[float, FloatArray]:
    """Return the share of the variance that lines within each level tell, corrected for their number, and the means by level."""
    counts = np.bincount(levels)
    means = np.bincount(levels, rewards) / counts
    along = values - (np.bincount(levels, values) / counts)[levels]
    spread = np.bincount(levels, along**2)
    sloped = spread > 1e-12 * max(float(values.var()), 1e-300) * counts
    slopes = np.where(sloped, np.bincount(levels, along * rewards) / np.where(sloped, spread, 1), 0)
    left = rewards - means[levels] - slopes[levels] * along
    within = float(np.sum(left**2)) / max(1, len(rewards) - len(counts) - int(sloped.sum()))
    total = float(rewards.var(ddof=1))
    return (1 - within / total if total > 0 else 0.0), means


def _words(values: FloatArray, mean: float) -> str:
    low, high = float(values.min()), float(values.max())
    span = f"{low:.3g}" if low == high else f"{low:.2g} to {high:.2g}"
    return f"({mean:.2g}) where it is {span}"


def _numbers(
    data: Transitions, regions: Regions | None, words: Mapping[float, str]
) -> Iterator[tuple[str, FloatArray]]:
    if regions is not None:
        yield from of_observations(data, regions, words)
    acts = data.actions.reshape(len(data), -1).astype(np.float64)
    for i in range(acts.shape[1]):
        yield ("the action" if acts.shape[1] == 1 else f"action {i}"), acts[:, i]
    yield TERMINATES, data.terminated.astype(np.float64)
    yield "the number of the step in its episode", data.steps.astype(np.float64)


def of_observations(
    data: Transitions, regions: Regions, words: Mapping[float, str]
) -> Iterator[tuple[str, FloatArray]]:
    """Yield summaries of states and next states by name, ``[n]`` each, the simplest first; ``words`` names object codes."""
    of = {"patch": _of_images, "cell": _of_grids, "feature": _of_vectors}[regions.kind]
    yield from of(data.observations, data.next_observations, regions, words)


def _of_vectors(
    before: Array, after: Array, regions: Regions, words: Mapping[float, str]
) -> Iterator[tuple[str, FloatArray]]:
    one, two = (each.reshape(len(each), -1).astype(np.float64) for each in (before, after))
    for i, name in enumerate(regions.names):
        yield f"{name} in the next state", two[:, i]
        yield f"{name} in the state", one[:, i]
    for i, name in enumerate(regions.names):
        yield f"{CHANGE}{name}", two[:, i] - one[:, i]
    for i, name in enumerate(regions.names):
        for j in range(i):
            if not np.allclose(np.hypot(one[:, i], one[:, j]), 1, atol=1e-3):
                continue  # not cosine and sine of an angle
            yield (
                f"the size of the angle of {regions.names[j]} and {name} in the state",
                abs(np.arctan2(one[:, i], one[:, j])),
            )
            yield f"the angle given by {regions.names[j]} and {name} in the state", np.arctan2(one[:, i], one[:, j])


def _of_images(
    before: Array, after: Array, regions: Regions, words: Mapping[float, str]
) -> Iterator[tuple[str, FloatArray]]:
    for when, images in zip(SIDE[::-1], (after, before), strict=True):
        for plane in range(regions.planes):
            yield f"{regions.names[plane - regions.planes]} in {when}", images[:, 0, 0, plane].astype(np.float64)
        images = images[..., regions.planes :]
        height, width, channels = images.shape[1:]
        by_channel = images.mean((1, 2), dtype=np.float64)
        yield f"the mean brightness of {when}", by_channel.mean(1)
        for channel in range(channels if channels > 1 else 0):
            yield f"the mean of channel {channel} of {when}", by_channel[:, channel]
        pixels = images.mean(3, dtype=np.float32)
        flat = pixels.reshape(len(pixels), -1)
        apart = np.abs(pixels - np.median(flat, 1)[:, None, None]).astype(np.float64)
        total = np.maximum(apart.sum((1, 2)), 1e-9)
        row = apart.sum(2) @ np.arange(height) / total
        column = apart.sum(1) @ np.arange(width) / total
        yield f"the brightness of the background (its most usual value) of {when}", np.median(flat, 1).astype(float)
        yield f"the row of the middle of what differs from the background of {when}", row
        yield f"the column of the middle of what differs from the background of {when}", column
        middle = np.hypot(row - (height - 1) / 2, column - (width - 1) / 2)
        yield f"the distance to the image's centre of the middle of what differs from the background of {when}", middle


def _of_grids(
    before: Array, after: Array, regions: Regions, words: Mapping[float, str]
) -> Iterator[tuple[str, FloatArray]]:
    rows, columns = regions.layout
    grids = [each.reshape(len(each), rows, columns) for each in (before, after)]
    codes, frequency = np.unique(before, return_counts=True)
    codes = codes[np.argsort(frequency == frequency.max(), kind="stable")][
        -10:
    ]  # the empty cell, the most frequent, is the last
    named = {code: f"the {word}" if (word := words.get(float(code))) else f"code {code:g}" for code in codes}
    counts = {code: [(grid == code).sum((1, 2)).astype(np.float64) for grid in grids] for code in codes}
    movers = [code for code in codes if all((of == 1).all() for of in counts[code])]
    for code in codes:
        for when, of in zip(SIDE[::-1], counts[code][::-1], strict=True):
            yield f"the number of cells that show {named[code]} in {when}", of
        yield f"{CHANGE}the number of cells that show {named[code]}", counts[code][1] - counts[code][0]
    for code in movers:
        for when, grid in zip(SIDE[::-1], grids[::-1], strict=True):
            place = (grid == code).reshape(len(grid), -1).argmax(1)
            row, column = np.divmod(place, columns)
            yield f"the row of {named[code]} in {when}", row.astype(np.float64)
            yield f"the column of {named[code]} in {when}", column.astype(np.float64)
            here = np.arange(len(grid))
            around = np.stack([grid[here, (row + r) % rows, (column + c) % columns] for r, c in _AROUND], 1)
            for other in codes:
                if other != code:
                    beside = (around == other).any(1).astype(np.float64)
                    yield f"whether {named[code]} is beside {named[other]} in {when}", beside


_AROUND = ((-1, 0), (0, 1), (1, 0), (0, -1))
