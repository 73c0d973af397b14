"""The reward along trajectories, at events, and beside the true reward of earlier and later steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.intervals import CORRELATION, MeanEstimate, jackknife_rows
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Reward along trajectories"
LAGS = range(-5, 6)
FEWEST = 20
"""Pairs of steps for the correlation at a lag."""
RARE = 0.2
"""Largest share of steps that an event happens at. What happens more often is not an event."""
JUMP = 5.0
"""A column jumps where it changes by more than this many standard deviations of its changes, or at all if it hardly ever does."""
LONGEST = 300
"""Most steps of an episode in a plot."""
COLOURS = ("#d55e00", "#0072b2")
"""Okabe and Ito's, safe for the common forms of colour blindness."""
MARKERS = "v^sDoPX"


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no trajectories to look at; None otherwise."""
    single = np.unique(context.subject.data.episodes, return_counts=True)[1].max() <= 2
    return "The data are single steps, not episodes." if single else None


def run(context: StepContext[Subject]) -> Section:
    """Plot the reward along episodes, compare it at events and elsewhere, and correlate it at lags."""
    data = context.subject.data
    rewards, happens = context.subject.scaled.of(data), events(data)
    if constant(rewards):
        return Section("by_time", TITLE, skipped="The reward is the same at every step.")
    at_events = {name: (int(there.sum()), _at_event(rewards, there, data.episodes)) for name, there in happens.items()}
    known = np.isfinite(data.rewards).all() and not constant(data.rewards)
    lags = {f"{lag:+d}": at_lag(rewards, data.rewards, data, lag) for lag in (LAGS if known else ())}
    values, pictures = values_of({"lags": lags, "events": at_events}), [_picture(data, rewards, happens)]
    return Section("by_time", TITLE, (), (), list(_tables(lags, at_events)), pictures, (), values)


def at_lag(rewards: FloatArray, true: FloatArray, data: Transitions, lag: int) -> MeanEstimate:
    """Correlate rewards with the true rewards ``lag`` steps before, within episodes; NaN of fewer than `FEWEST` pairs."""
    before = np.arange(max(0, -lag), min(len(data), len(data) - lag))
    after = before + lag
    same = (data.episodes[before] == data.episodes[after]) & (data.steps[after] - data.steps[before] == lag)
    late, early = rewards[after[same]], true[before[same]]
    if len(late) < FEWEST or constant(late) or constant(early):
        return MeanEstimate(math.nan, None, None)
    return jackknife_rows(lambda at: pearson(late[at], early[at]), data.episodes[after[same]], CORRELATION)


def _at_event(rewards: FloatArray, there: BoolArray, episodes: IntArray) -> MeanEstimate:
    scaled = rewards / rewards.std()

    def difference(at: IntArray) -> float:
        inside = there[at]
        return float(scaled[at][inside].mean() - scaled[at][~inside].mean()) if 0 < inside.sum() < len(at) else math.nan

    return jackknife_rows(difference, episodes)


def _tables(lags: Mapping[str, MeanEstimate], at_events: Mapping[str, tuple[int, MeanEstimate]]) -> Iterator[Table]:
    if lags:
        rows = [[f"{lag} steps", each.mean, each.low, each.high] for lag, each in lags.items()]
        caption = (
            "Correlation with the true reward of other steps: +1 is the step before, which a reward that comes late follows. "
            "Where true rewards of neighbouring steps are alike, so are these."
        )
        yield Table(["late by", "correlation", "95 % from", "to"], rows, caption)
    if at_events:
        rows = [[name, steps, each.mean, each.low, each.high] for name, (steps, each) in at_events.items()]
        caption = "The reward at events, less that elsewhere, in standard deviations."
        yield Table(["event", "steps", "difference", "95 % from", "to"], rows, caption)


def _picture(data: Transitions, rewards: FloatArray, happens: Mapping[str, BoolArray]) -> Picture:
    """Draw the rewards of telling episodes: a row for each, and beside it the true reward with the given one on its scale."""
    columns = {"given reward": {"given reward": rewards}}
    if np.isfinite(true := data.rewards).all():
        scaled = (rewards - rewards.mean()) / rewards.std() * true.std() + true.mean()
        columns["true, and given on its scale"] = {"given, rescaled": scaled, "true reward": true}
    names, at = np.unique(data.episodes, return_inverse=True)
    order = np.argsort(np.bincount(at, rewards), kind="stable")[::-1]
    picks = np.unique(np.linspace(0, len(order) - 1, min(3, len(order))).round().astype(int))
    width, height = 5.2 * len(columns), 1.9 * len(picks) + 0.6
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(len(picks), len(columns), squeeze=False, sharex="row")
    figure.subplots_adjust(0.5 / width, 0.65 / height, 1 - 0.1 / width, 1 - 0.25 / height, 0.12, 0.35)
    for row, episode in zip(axes, names[order[picks]], strict=True):
        shown = np.flatnonzero(data.episodes == episode)[:LONGEST]
        for ax, (title, curves) in zip(row, columns.items(), strict=True):
            for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
                ax.plot(data.steps[shown], values[shown], color=colour, linewidth=1.2, label=name)
            low, high = ax.get_ylim()
            for number, (marker, (name, there)) in enumerate(zip(MARKERS, happens.items(), strict=False), 1):
                steps = data.steps[shown[there[shown]]]
                heights = np.full(len(steps), low - (high - low) * 0.08 * number)
                ax.plot(steps, heights, marker, color="#59636e", ms=4, ls="", label=f"event: {name}")
            ax.tick_params(labelsize=7)
            ax.spines[["top", "right"]].set_visible(False)
            ax.set_title(f"{title}, episode {episode}", fontsize=9, loc="left")
    handles = {h.get_label(): h for ax in axes.flat for h in ax.get_legend_handles_labels()[0]}
    figure.legend(handles=list(handles.values()), loc="lower center", ncols=6, fontsize=8, frameon=False)
    caption = "Episodes with the largest, middle and smallest sum of the given reward. Marks: events."
    return Picture("episodes", png(figure, dpi=80), caption)


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


STEP = Step("by_time", TITLE, run, why_not=why_not)
