"""Dataset examples: the steps that the reward values most and least, and those at its quantiles."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.plots import draw_observation, png
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
APART = 0.5
"""Share of the true reward's range by which the highest and the lowest examples should differ in it."""
SAME = 1e-6
"""Standard deviations below which rewards count as equal: 32-bit arithmetic leaves about that much."""
DRAWN = 6
"""Steps drawn of each kind."""
SHOWN = 8
"""Numbers of a vector that a table shows."""


@dataclass(frozen=True)
class Examples:
    """Steps of one kind.

    Attributes:
        kind: "highest", "lowest", "quantile 0.5", "highest with action 2", …
        indices: their indices in the data, in order: the most extreme first.
        rewards: their rewards.
        equal: how many steps of the data have each of these rewards.
    """

    kind: str
    indices: IntArray
    rewards: FloatArray
    equal: IntArray


@dataclass(frozen=True)
class TrueRewards:
    """True rewards of the steps valued most and least, and of all that tie with them: means and numbers, and the data's range."""

    highest: float
    lowest: float
    of_highest: int
    of_lowest: int
    minimum: float
    maximum: float

    @property
    def apart(self) -> float:
        """Difference between highest and lowest examples, as a share of the range."""
        return (self.highest - self.lowest) / (self.maximum - self.minimum)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the step does not apply; None if it does."""
    return None if len(context.subject.data) else WORDS.text("no_steps")


def run(context: StepContext[Subject]) -> Section:
    """Choose the examples and draw them."""
    subject = context.subject
    chosen = examples(subject.scaled, subject.data)
    true = true_rewards(subject.judged, subject.data)
    statements = []
    if true is not None and true.apart <= APART:
        statements.append(WORDS.statement("truth_differs", 0.5 - true.apart, means=true))
    grid = subject.regions.layout if subject.regions is not None and subject.regions.kind == "cell" else None
    drawable = grid is not None or subject.data.observations.ndim == 4
    pictures = [WORDS.picture("examples", _image(chosen[:2], subject.data, grid))] if drawable else []
    table = _table(subject.data, chosen, [] if drawable else _feature_names(subject))
    return WORDS.section(statements, tables=[table], pictures=pictures, figures={"examples": chosen})


def examples(reward: RewardFunction, data: Transitions, count: int = 8) -> list[Examples]:
    """Choose examples: highest, lowest, nearest to each of `QUANTILES`, and highest and lowest for each discrete action.

    Of steps with equal rewards, those whose content has the smallest checksum come first, whatever the order of the data. The
    quantiles are steps of the data: with ``n`` steps sorted by reward, quantile ``q`` is number ``round(q * (n - 1))``.

    Args:
        reward: the reward function.
        data: the steps.
        count: steps of each kind; quantiles have one.
    """
    if not len(data):
        return []
    values = reward.of(data)
    level = levels(values)
    content = checksums(data)
    up, down = np.lexsort([content, level]), np.lexsort([content, -level])
    sizes = np.bincount(level)
    kinds: list[tuple[str, IntArray]] = [("highest", down[:count]), ("lowest", up[:count])]
    kinds += [(f"quantile {share:g}", up[[round(share * (len(up) - 1))]]) for share in QUANTILES]
    if isinstance(reward.action_space, gym.spaces.Discrete):
        for action in np.unique(data.actions):
            taken = np.flatnonzero(data.actions == action)
            for kind, order in (("highest", down), ("lowest", up)):
                kinds.append((f"{kind} with action {action}", order[np.isin(order, taken)][:count]))
    return [Examples(kind, steps, values[steps], sizes[level[steps]]) for kind, steps in kinds]


def levels(values: FloatArray) -> IntArray:
    """Number the rewards from the lowest, ``[n]``; those that differ by less than `SAME` from the next get one number."""
    order = np.argsort(values, kind="stable")
    apart = np.diff(values[order], prepend=values[order[:1]]) > SAME * values.std()
    level = np.zeros(len(values), np.int64)
    level[order] = np.cumsum(apart)
    return level


def checksums(data: Transitions) -> IntArray:
    """Return a checksum of what each step shows, ``[n]``."""
    columns = (data.observations, data.actions, data.next_observations, data.terminated)
    found = np.zeros(len(data), np.int64)
    for row in range(len(data)):
        for column in columns:
            found[row] = zlib.crc32(np.ascontiguousarray(column[row]).tobytes(), int(found[row]))
    return found


def true_rewards(reward: RewardFunction, data: Transitions, count: int = 8) -> TrueRewards | None:
    """Return the true rewards of the ``count`` steps valued most and least, and of all that tie with them.

    None if they are unknown or constant, or the given reward is constant.
    """
    true, level = data.rewards, levels(reward.of(data))
    if constant(true) or level.max(initial=0) == 0:
        return None
    ordered, most = np.sort(level), min(count, len(level))
    top, bottom = level >= ordered[-most], level <= ordered[most - 1]
    means = float(true[top].mean()), float(true[bottom].mean())
    return TrueRewards(*means, int(top.sum()), int(bottom.sum()), float(true.min()), float(true.max()))


def _feature_names(subject: Subject) -> list[str]:
    size = int(np.prod(subject.data.observations.shape[1:]))
    if subject.regions is not None and subject.regions.kind == "feature":
        return list(subject.regions.names)[:SHOWN]
    return ["state"] if size == 1 else feature_names(subject.reward.observation_space)[:SHOWN]


def _table(data: Transitions, chosen: Sequence[Examples], names: Sequence[str]) -> Table:
    rows = [
        [
            each.kind,
            int(index),
            *_cells(data, index),
            round(float(value), 4),
            int(equal),
            *_numbers(data, index, len(names)),
        ]
        for each in chosen
        for index, value, equal in zip(each.indices, each.rewards, each.equal, strict=True)
    ]
    return WORDS.table("examples", rows, [*names, *(f"next {name}" for name in names)])


def _cells(data: Transitions, index: int) -> list[Any]:
    action, true = np.asarray(data.actions[index]), float(data.rewards[index])
    return [
        int(data.episodes[index]),
        int(data.steps[index]),
        action.item() if action.ndim == 0 else ", ".join(f"{float(a):.3g}" for a in action.ravel()[:SHOWN]),
        "yes" if data.terminated[index] else "",
        round(true, 4) if np.isfinite(true) else "unknown",
    ]


def _numbers(data: Transitions, index: int, count: int) -> list[float]:
    both = data.observations[index], data.next_observations[index]
    return [round(float(number), 3) for shown in both for number in np.asarray(shown).ravel()[:count]]


def _image(chosen: Sequence[Examples], data: Transitions, grid: tuple[int, int] | None) -> bytes:
    columns = min(DRAWN, max(len(each.indices) for each in chosen))
    figure = Figure((2.6 * columns, 1.9 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 2 * columns, squeeze=False)
    most = float(max(data.observations[:200].max(), data.next_observations[:200].max()))
    for row, each in zip(axes, chosen, strict=True):
        for place in row:
            place.set_axis_off()
        for number, index in enumerate(each.indices[:columns]):
            both: tuple[Array, Array] = data.observations[index], data.next_observations[index]
            for place, observation in zip(row[2 * number : 2 * number + 2], both, strict=True):
                place.set_axis_on()
                draw_observation(place, observation, grid, most)
            true = f", true {data.rewards[index]:.2g}" if np.isfinite(data.rewards[index]) else ""
            title = f"step {index}\n{each.rewards[number]:.2f}{true}"
            row[2 * number].set_title(title, fontsize=7, loc="left")
    return png(figure)


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
