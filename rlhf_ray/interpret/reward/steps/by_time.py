"""The reward along trajectories, at events, and beside the true reward of earlier and later steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.by_time import draw, events, rescaled, telling_episodes
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.intervals import CORRELATION, MeanEstimate, jackknife_rows
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Reward along trajectories"
LAGS = range(-5, 6)
FEWEST = 20
"""Pairs of steps for the correlation at a lag."""


@dataclass(frozen=True)
class ByTime:
    """What the step finds.

    Attributes:
        lags: correlation with the true reward of the step ``lag`` steps before; empty if that is unknown.
        events: steps of each event, and the reward there less that elsewhere, in standard deviations.
    """

    lags: dict[str, MeanEstimate]
    events: dict[str, tuple[int, MeanEstimate]]


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no trajectories to look at; None otherwise."""
    data = context.subject.data
    if len(data) < 3:
        return "There are too few steps."
    single = np.unique(data.episodes, return_counts=True)[1].max() <= 2
    return "The data are single steps, not episodes." if single else None


def run(context: StepContext[Subject]) -> Section:
    """Plot the reward along episodes, compare it at events and elsewhere, and correlate it at lags."""
    subject = context.subject
    rewards, happens = subject.scaled.of(subject.data), events(subject.data)
    if constant(rewards):
        return Section("by_time", TITLE, skipped="The reward is the same at every step.")
    figures = measure(rewards, happens, subject.data)
    pictures = [_picture(subject.data, rewards, happens)]
    return Section("by_time", TITLE, (), (), list(_tables(figures)), pictures, (), values_of(figures))


def measure(rewards: FloatArray, happens: dict[str, BoolArray], data: Transitions) -> ByTime:
    """Compute the figures.

    Args:
        rewards: ``[n]``.
        happens: where each event is, ``[n]``.
        data: the steps.
    """
    at_events = {name: (int(there.sum()), _at_event(rewards, there, data.episodes)) for name, there in happens.items()}
    true = data.rewards
    if not np.isfinite(true).all() or constant(true):
        return ByTime({}, at_events)
    return ByTime({f"{lag:+d}": at_lag(rewards, true, data, lag) for lag in LAGS}, at_events)


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


def _tables(figures: ByTime) -> Iterator[Table]:
    if figures.lags:
        rows = [[f"{lag} steps", *_ends(each)] for lag, each in figures.lags.items()]
        caption = (
            "Correlation with the true reward of other steps: +1 is the step before, which a reward that comes late follows. "
            "Where true rewards of neighbouring steps are alike, so are these."
        )
        yield Table(["late by", "correlation", "95 % from", "to"], rows, caption)
    if figures.events:
        rows = [[name, steps, *_ends(each)] for name, (steps, each) in figures.events.items()]
        caption = "The reward at events, less that elsewhere, in standard deviations."
        yield Table(["event", "steps", "difference", "95 % from", "to"], rows, caption)


def _ends(each: MeanEstimate) -> tuple[float, float | None, float | None]:
    return each.mean, each.low, each.high


def _picture(data: Transitions, rewards: FloatArray, happens: dict[str, BoolArray]) -> Picture:
    columns = {"given reward": {"given reward": rewards}}
    if np.isfinite(data.rewards).all():
        scaled = {"given, rescaled": rescaled(rewards, data.rewards), "true reward": data.rewards}
        columns["true, and given on its scale"] = scaled
    image = draw(data, columns, telling_episodes(data, rewards), happens)
    caption = "Episodes with the largest, middle and smallest sum of the given reward. Marks: events. Dashed: mean between changes."
    return Picture("episodes", image, caption)


STEP = Step("by_time", TITLE, run, why_not=why_not)
