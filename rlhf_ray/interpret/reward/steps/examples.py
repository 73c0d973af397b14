"""Dataset examples: steps that the reward values most and least, those at its quantiles, and those it values wrongly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.exchange import Order
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import Tile, film, gallery, rgb
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Steps that it values most, least and wrongly"
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
SAME = 1e-6
"""Standard deviations below which rewards count as equal: 32-bit arithmetic leaves about that much."""
DRAWN = 6
"""Steps drawn of each kind."""
SHOWN = 8
"""Numbers of a vector that a table shows."""
FILMS, AROUND, MILLISECONDS, PIXELS = 3, 8, 150, 128
"""Films of each kind, steps before and after the one in the middle, time of a frame, and pixels of a film's height, about."""


@dataclass(frozen=True)
class Examples:
    """Steps of one kind, the most extreme first."""

    kind: str  # "highest", "lowest", "quantile 0.5", "highest with action 2", …
    indices: IntArray  # in the data
    rewards: FloatArray
    equal: IntArray  # how many steps of the data have each of these rewards


def run(context: StepContext[Subject]) -> Section:
    """Choose the examples and draw them."""
    subject = context.subject
    data, grid = subject.data, subject.grid
    chosen = examples(subject.scaled, data)
    wrong = misjudged(subject.scaled, data)
    pictures = []
    if grid is not None or data.observations.ndim == 4:
        caption = "State and next state of the steps with the highest and the lowest rewards"
        caption += ", and of those it over- and undervalues most." if wrong else "."
        rows = [(each.kind, _tiles(each, data, grid)) for each in (*chosen[:2], *wrong)]
        pictures.append(Picture("examples", gallery(rows, float(np.max(data.observations))), caption))
    if wrong and data.observations.ndim == 4 and data.observations.dtype == np.uint8:
        caption = f"Films of {AROUND} steps before and after: above, steps that it overvalues most; below, undervalues."
        pictures.append(Picture("films", films([each.indices[:FILMS] for each in wrong], data), caption))
    table = _table(data, [*chosen, *wrong], [] if pictures else _feature_names(subject))
    values = values_of({"examples": chosen, "misjudged": wrong})
    return Section("examples", TITLE, (), (), [table], pictures, (), values)


def misjudged(reward: RewardFunction, data: Transitions, count: int = 8) -> list[Examples]:
    """Choose the steps whose place in the order differs most from that by the true reward: overvalued, and undervalued.

    Returns:
        Empty if the true reward is unknown or constant, or the places differ nowhere.
    """
    values = reward.of(data)
    if not np.isfinite(data.rewards).all() or constant(data.rewards) or constant(values):
        return []
    apart = Order(values)(values) - Order(data.rewards)(data.rewards)
    found, level = [], levels(values)
    for kind, sign in (("overvalued", -1), ("undervalued", 1)):
        order = np.argsort(sign * apart, kind="stable")[:count]
        steps = order[np.abs(apart[order]) > SAME]
        found.append(Examples(kind, steps, values[steps], np.bincount(level)[level[steps]]))
    return found if all(len(each.indices) for each in found) else []


def films(rows: Sequence[IntArray], data: Transitions) -> bytes:
    """Return an animated WebP: a row of films for each of ``rows``, the steps in the middle of each."""
    clips: list[list[Array]] = [[] for _ in rows]
    for clip, step in ((clip, int(step)) for clip, steps in zip(clips, rows, strict=True) for step in steps):
        own = np.flatnonzero(data.episodes == data.episodes[step])  # beyond it, its first or last one again
        places = np.clip(np.arange(step - AROUND, step + AROUND + 1), own[0], own[-1])
        clip.append(rgb(data.next_observations[places]))
    frames = []
    for at in range(2 * AROUND + 1):
        lines = [np.concatenate([clip[at] for clip in line], 1) for line in clips]
        width = max(line.shape[1] for line in lines)
        frames.append(np.concatenate([np.pad(line, ((0, 0), (0, width - line.shape[1]), (0, 0))) for line in lines], 0))
    return film(frames, MILLISECONDS, PIXELS * len(rows))


def examples(reward: RewardFunction, data: Transitions, count: int = 8) -> list[Examples]:
    """Choose examples: highest, lowest, nearest to each of `QUANTILES`, and highest and lowest for each discrete action.

    Of steps with equal rewards, those whose content has the smallest checksum come first, whatever the order of the data. The
    quantiles are steps of the data: with ``n`` steps sorted by reward, quantile ``q`` is number ``round(q * (n - 1))``.

    There are ``count`` steps of each kind; quantiles have one.
    """
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


def _feature_names(subject: Subject) -> list[str]:
    size = int(np.prod(subject.data.observations.shape[1:]))
    if subject.regions is not None and subject.regions.kind == "feature":
        return list(subject.regions.names)[:SHOWN]
    return ["state"] if size == 1 else feature_names(subject.reward.observation_space)[:SHOWN]


def _table(data: Transitions, chosen: Sequence[Examples], names: Sequence[str]) -> Table:
    rows = []
    for each in chosen:
        for index, value, equal in zip(each.indices, each.rewards, each.equal, strict=True):
            action, true = np.asarray(data.actions[index]), float(data.rewards[index])
            taken = action.item() if action.ndim == 0 else ", ".join(f"{float(a):.3g}" for a in action.ravel()[:SHOWN])
            ends = "yes" if data.terminated[index] else ""
            known = round(true, 4) if np.isfinite(true) else "unknown"
            at = int(index), int(data.episodes[index]), int(data.steps[index])
            both = (np.ravel(of[index])[: len(names)] for of in (data.observations, data.next_observations))
            numbers = [round(float(number), 3) for shown in both for number in shown]
            rows.append([each.kind, *at, taken, ends, known, round(float(value), 4), int(equal), *numbers])
    columns = ["kind", "index", "episode", "step", "action", "ends", "true reward", "reward", "steps of equal reward"]
    caption = (
        "Examples, with their index in the data. Of steps of equal reward, those with the smallest checksum are shown."
    )
    return Table([*columns, *names, *(f"next {name}" for name in names)], rows, caption)


def _tiles(each: Examples, data: Transitions, grid: tuple[int, int] | None) -> list[Tile]:
    """Return the steps to draw: states, next states and rewards."""
    found = []
    for index, value in zip(each.indices[:DRAWN], each.rewards, strict=False):
        true = f", true {data.rewards[index]:.2g}" if np.isfinite(data.rewards[index]) else ""
        shown = data.observations[index], data.next_observations[index]
        found.append(step_tile(f"step {index}\n{value:.2f}{true}", *shown, grid))
    return found


def step_tile(text: str, state: Array, after: Array, grid: tuple[int, int] | None) -> Tile:
    """Return a step as it is drawn: its state and next state, ``grid``: (rows, columns) if they are grids."""
    return Tile([each if grid is None else each.reshape(grid) for each in (state, after)], text)


STEP = Step("examples", TITLE, run)
