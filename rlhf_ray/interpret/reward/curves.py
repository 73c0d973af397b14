"""Curves: the mean reward by what a part of the step shows, everything else being as in the data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf_ray.data.arrays import FloatArray

SLACK = 0.1
"""Share of its range by which a curve that rises or falls may go the other way."""
FEW, SEVERAL = 6, 12
"""Most values at each of two moments that are told apart as changes; most values of one moment that are told apart."""
LEAST = 3
"""Least pairs of a point."""


@dataclass(frozen=True)
class Curve:
    """The mean reward as a function of what a region shows, everything else being as in the data.

    Attributes:
        content: what the region shows: ``(low, high)`` of a range, one value, or a change ``(before, after)``, in words.
        middle: ``[bins]`` the content's mean, for drawing; for changes the number of the bin.
        rewards: ``[bins]`` mean reward.
        counts: ``[bins]`` pairs.
    """

    content: tuple[str, ...]
    middle: FloatArray
    rewards: FloatArray
    counts: FloatArray

    @property
    def top(self) -> int:
        """The bin of the highest mean reward."""
        return int(self.rewards.argmax())

    @property
    def bottom(self) -> int:
        """The bin of the lowest mean reward."""
        return int(self.rewards.argmin())

    @property
    def changes(self) -> bool:
        """Whether the contents are changes."""
        return any("→" in content for content in self.content)

    @property
    def direction(self) -> Literal["up", "down"] | None:
        """Whether more raises or lowers the reward; None if neither, or with two bins."""
        rise, slack = np.diff(self.rewards), SLACK * np.ptp(self.rewards)
        if len(self.rewards) < 3 or "→" in self.content[0]:
            return None
        if rise.min() > -slack and self.top > self.bottom:
            return "up"
        return "down" if rise.max() < slack and self.top < self.bottom else None


def curve_of(
    contents: Sequence[FloatArray],
    rewards: FloatArray,
    weights: FloatArray,
    bins: int = 8,
    words: Mapping[float, str] | None = None,
) -> Curve | None:
    """Return the mean of ``rewards``, with ``weights``, by content: one array ``[n]`` for each moment, the later moment first.

    Two moments with few values are told apart as changes; otherwise the later moment counts. ``words`` names values.
    """

    def called(value: float) -> str:
        return (words or {}).get(float(value), f"{value:.3g}")

    values = [np.unique(content) for content in contents]
    if len(contents) == 2 and max(map(len, values)) <= FEW:
        after, before = contents
        keys = list(itertools.product(values[1], values[0]))
        groups = [
            (f"{called(b)} → {called(a)}" if a != b else f"{called(a)} in both", (before == b) & (after == a))
            for b, a in keys
        ]
        middle = np.arange(len(groups), dtype=float)
    elif len(values[0]) <= SEVERAL:
        groups = [(called(value), contents[0] == value) for value in values[0]]
        middle = values[0].astype(float)
    else:
        edges = np.unique(np.quantile(contents[0], np.linspace(0, 1, bins + 1)))
        which = np.clip(np.searchsorted(edges, contents[0], "right") - 1, 0, len(edges) - 2)
        groups = [(f"{edges[i]:.2g} to {edges[i + 1]:.2g}", which == i) for i in range(len(edges) - 1)]
        middle = (edges[1:] + edges[:-1]) / 2
    kept = [i for i, (_, at) in enumerate(groups) if at.sum() >= LEAST]
    if len(kept) < 2:
        return None
    return Curve(
        tuple(groups[i][0] for i in kept),
        np.asarray(middle[kept]),
        np.array([np.average(rewards[groups[i][1]], weights=weights[groups[i][1]]) for i in kept]),
        np.array([groups[i][1].sum() for i in kept], float),
    )
