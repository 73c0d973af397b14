"""Curves: the mean reward by what a part of the step shows, everything else being as in the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.exchange import StepPart
from rlhf_ray.reward.functions import RewardFunction

SURE = 3.0
"""Standard errors from which two points differ: a curve of eight has 28 pairs of them."""
OWN, OWN_OF_IMAGES = 400, 60
"""Steps that each point's content is shown in: the mean of as many is off by a twentieth of the reward's spread at most."""
FEW, SEVERAL, BINS = 6, 12, 8
"""Most values at each of two moments that are told apart as changes; most values of one moment that are told apart; points of
more."""
LEAST = 3
"""Least steps that show a point's content."""


@dataclass(frozen=True)
class Curve:
    """The mean reward as a function of what a region shows, everything else being as in the data.

    Attributes:
        content: what the region shows: ``(low, high)`` of a range, one value, or a change ``(before, after)``, in words.
        middle: ``[bins]`` the content's mean, for drawing; for changes the number of the bin.
        rewards: ``[bins]`` mean reward.
        within: ``[bins]``: two standard errors of it.
        differ: ``[bins, bins]``: how many standard errors the second of two points is above the first, from the same steps.
    """

    content: tuple[str, ...]
    middle: FloatArray
    rewards: FloatArray
    within: FloatArray
    differ: FloatArray

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
        """Whether more raises or lowers the reward: no point surely goes the other way. None if neither, or with two points."""
        later = self.differ[np.triu_indices(len(self.rewards), 1)]
        if len(self.rewards) < 3 or "→" in self.content[0]:
            return None
        if later.max() > SURE and later.min() > -SURE:
            return "up"
        return "down" if later.min() < -SURE and later.max() < SURE else None


def curve_of(
    reward: RewardFunction,
    data: Transitions,
    part: StepPart,
    contents: Sequence[FloatArray],
    words: Mapping[float, str] | None = None,
    own: int = OWN,
) -> Curve | None:
    """Return the mean reward of ``own`` steps by what a part of them is exchanged for, everything else being as in the data.

    Args:
        reward: the reward function.
        data: the steps that are taken, and that show the contents.
        part: the part.
        contents: what the steps show there: one array ``[n]`` for each moment, the later moment first. Two moments with few values
            are told apart as changes; otherwise the later moment counts.
        words: names of values.
        own: number of steps.
    """
    groups = [(name, middle, at) for name, middle, at in _groups(contents, words or {}) if at.sum() >= LEAST]
    if len(groups) < 2:
        return None
    rng = np.random.default_rng(0)
    steps = data[rng.choice(len(data), own)]
    shown = [data[rng.choice(np.flatnonzero(at), own)] for _, _, at in groups]
    after = np.stack([reward.of(part.exchange(steps, donors)) for donors in shown])
    beyond = after[None] - after[:, None]
    errors = np.maximum(beyond.std(2, ddof=1) / np.sqrt(own), 1e-12 + 1e-9 * np.abs(after).max())
    return Curve(
        tuple(name for name, _, _ in groups),
        np.array([middle for _, middle, _ in groups], float),
        after.mean(1),
        2 * after.std(1, ddof=1) / np.sqrt(own),
        beyond.mean(2) / errors,
    )


def _groups(contents: Sequence[FloatArray], words: Mapping[float, str]) -> Iterator[tuple[str, float, BoolArray]]:
    """Yield contents: their name, their middle, and which steps show them."""

    def called(value: float) -> str:
        return words.get(float(value), f"{value:.3g}")

    values = [np.unique(content) for content in contents]
    if len(contents) == 2 and max(map(len, values)) <= FEW:
        after, before = contents
        for number, (b, a) in enumerate(itertools.product(values[1], values[0])):
            name = f"{called(b)} → {called(a)}" if a != b else f"{called(a)} in both"
            yield name, float(number), (before == b) & (after == a)
    elif len(values[0]) <= SEVERAL:
        for value in values[0]:
            yield called(value), float(value), contents[0] == value
    else:
        edges = np.unique(np.quantile(contents[0], np.linspace(0, 1, BINS + 1)))
        which = np.clip(np.searchsorted(edges, contents[0], "right") - 1, 0, len(edges) - 2)
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            yield f"{low:.2g} to {high:.2g}", float(low + high) / 2, which == number
