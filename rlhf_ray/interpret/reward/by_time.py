"""Reward along trajectories: events and change points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.study.plots import png

RARE = 0.2
"""Largest share of steps that an event happens at. What happens more often is not an event."""
JUMP = 5.0
"""A column jumps where it changes by more than this many standard deviations of its changes, or at all if it hardly ever does."""
LONGEST = 300
"""Most steps of an episode in a plot."""
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9")
"""Okabe and Ito's, safe for the common forms of colour blindness."""
MARKERS = "v^sDoPX"


def events(data: Transitions) -> dict[str, BoolArray]:
    """Find the steps where something happens, by name, ``[n]`` each.

    Names: ``true reward`` (one that is usually zero is not), ``terminated``, and ``state.NAME`` where that column jumps: the step
    whose next state has another value than its state. Of an episode's last step, that is not recorded.
    """
    found: dict[str, BoolArray] = {"terminated": np.asarray(data.terminated, bool)}
    known = np.isfinite(data.rewards)
    found["true reward"] = known & (np.where(known, data.rewards, 0.0) != 0.0)
    for name, values in data.columns.items():
        if name.startswith("state.") and values.ndim == 1 and values.dtype.kind in "biuf":
            found[name] = _jumps(values.astype(np.float64), data.episodes)
    return {name: happens for name, happens in found.items() if 0.0 < happens.mean() <= RARE}


def _jumps(values: FloatArray, episodes: IntArray) -> BoolArray:
    change = np.zeros(len(values))
    same = episodes[1:] == episodes[:-1]
    change[:-1] = np.where(same, np.abs(np.diff(values)), 0.0)
    change = np.nan_to_num(change, posinf=0.0)
    limit = 0.0 if np.count_nonzero(change) <= RARE * len(change) else JUMP * float(change.std())
    return np.asarray(change > limit)


def change_points(values: FloatArray, penalty: float | None = None) -> IntArray:
    """Find where the mean of a series changes: the partition with the least squared error plus ``penalty`` per change, exactly.

    Optimal partitioning (Jackson et al. 2005).

    Args:
        values: ``[n]``.
        penalty: cost of a change, in squared units of ``values``; by default ``3 s² log n``, where s is the noise estimated from
            the median difference of neighbours.

    Returns:
        First steps of the parts after the first, in order.
    """
    n = len(values)
    if n < 2:
        return np.zeros(0, np.int64)
    centred = np.asarray(values, np.float64) - np.mean(values)
    if penalty is None:
        noise = float(np.median(np.abs(np.diff(centred)))) / 0.954  # of normal noise: 0.6745 times the square root of 2
        penalty = max(3.0 * noise**2 * float(np.log(n)), 1e-3 * float(np.square(centred).sum()))
    sums, squares = (np.concatenate([[0.0], np.cumsum(of)]) for of in (centred, centred**2))
    best, last = np.full(n + 1, -penalty), np.zeros(n + 1, np.int64)
    for end in range(1, n + 1):
        starts = np.arange(end)
        cost = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        total = best[:end] + cost + penalty
        last[end] = int(np.argmin(total))
        best[end] = total[last[end]]
    found = []
    at = int(last[n])
    while at > 0:
        found.append(at)
        at = int(last[at])
    return np.array(found[::-1], np.int64)


def rescaled(rewards: FloatArray, true: FloatArray) -> FloatArray:
    """Return the rewards with the mean and standard deviation of the true ones, where those are known."""
    known = np.isfinite(true)
    deviation = float(rewards[known].std()) if known.any() else 0.0
    if deviation == 0.0:
        return rewards
    result: FloatArray = (rewards - rewards[known].mean()) / deviation * true[known].std() + true[known].mean()
    return result


def telling_episodes(data: Transitions, rewards: FloatArray, most: int = 3) -> list[int]:
    """Choose episodes to show: with the largest, the middle and the smallest sum of rewards."""
    names, at = np.unique(data.episodes, return_inverse=True)
    order = np.argsort(np.bincount(at, rewards), kind="stable")[::-1]
    picks = np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))
    return [int(names[order[i]]) for i in picks]


def draw(
    data: Transitions,
    columns: Mapping[str, Mapping[str, FloatArray]],
    episodes: Sequence[int],
    marks: Mapping[str, BoolArray],
    with_changes: bool = True,
) -> bytes:
    """Draw rewards along episodes as a PNG: one row per episode, one column per entry of ``columns``.

    Args:
        data: the steps.
        columns: the curves of each column by name, ``[n]`` each; the first one's change points are drawn as its mean between them.
        episodes: the episodes to show.
        marks: events, drawn below the curves.
        with_changes: whether to draw change points.
    """
    width, height = 5.2 * len(columns), 1.9 * len(episodes) + 0.6
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(len(episodes), len(columns), squeeze=False, sharex="row")
    figure.subplots_adjust(0.5 / width, 0.65 / height, 1 - 0.1 / width, 1 - 0.25 / height, 0.12, 0.35)
    for row, episode in zip(axes, episodes, strict=True):
        at = np.flatnonzero(data.episodes == episode)[:LONGEST]
        for ax, (title, curves) in zip(row, columns.items(), strict=True):
            _draw_episode(ax, data.steps[at], {name: of[at] for name, of in curves.items()}, with_changes)
            _draw_marks(ax, data.steps[at], {name: of[at] for name, of in marks.items()})
            ax.set_title(f"{title}, episode {episode}", fontsize=9, loc="left")
    handles = {h.get_label(): h for ax in axes.flat for h in ax.get_legend_handles_labels()[0]}
    figure.legend(handles=list(handles.values()), loc="lower center", ncols=6, fontsize=8, frameon=False)
    return png(figure, dpi=80)


def _draw_episode(ax: Axes, steps: IntArray, curves: Mapping[str, FloatArray], with_changes: bool) -> None:
    for number, (name, values) in enumerate(curves.items()):
        ax.plot(steps, values, color=COLOURS[number % len(COLOURS)], linewidth=1.2, label=name)
        if number == 0 and with_changes:
            starts = np.concatenate([[0], change_points(values), [len(values)]])
            means = [values[a:b].mean() for a, b in itertools.pairwise(starts)]
            edges = np.append(steps, steps[-1] + 1)[starts]
            ax.stairs(
                means,
                edges,
                baseline=None,
                color="#1b1f24",
                linewidth=0.9,
                linestyle="--",
                label="mean between changes",
            )
    ax.tick_params(labelsize=7)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _draw_marks(ax: Axes, steps: IntArray, marks: Mapping[str, BoolArray]) -> None:
    low, high = ax.get_ylim()
    for number, (name, happens) in enumerate(list(marks.items())[: len(MARKERS)]):
        height = low - (high - low) * 0.08 * (number + 1)
        at = steps[happens]
        ax.plot(
            at,
            np.full(len(at), height),
            MARKERS[number],
            color="#59636e",
            markersize=4,
            linestyle="",
            label=f"event: {name}",
        )
