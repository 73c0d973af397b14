"""The reward along trajectories, at events, and how late it comes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.by_time import draw, events, rescaled, telling_episodes
from rlhf_ray.interpret.reward.lags import Lag, lag_of
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)
TRUE = "true reward"

CLEAR = 0.5
"""Difference between the reward at an event and elsewhere, in standard deviations, from which, with its
whole interval, the verdict names it."""
FOLLOWS = 0.3
"""Correlation at a lag from which the verdict names it."""


@dataclass(frozen=True)
class AtEvent:
    """The reward where something happens: number of steps, and mean reward there less elsewhere, in standard deviations.

    ``low``, ``high``: its 95 % interval over episodes; NaN with fewer than three.
    """

    steps: int
    difference: float
    low: float = math.nan
    high: float = math.nan

    @property
    def clear(self) -> bool:
        """Whether the difference is at least `CLEAR`, with its whole interval where there is one."""
        ends = [end for end in (self.difference, self.low, self.high) if not math.isnan(end)]
        return min(ends) >= CLEAR or max(ends) <= -CLEAR

    @property
    def size(self) -> OverEpisodes:
        """The difference without its sign."""
        ends = (self.low, self.high) if self.difference > 0 else (-self.high, -self.low)
        return OverEpisodes(abs(self.difference), *ends)


@dataclass(frozen=True)
class ByTime:
    """What the step finds.

    Attributes:
        spread: standard deviation of the reward; 0 if it is constant.
        lags: how the reward follows each event, and the true reward.
        events: the reward at each event.
        as_true: whether it is constant as the true reward is.
    """

    spread: float
    lags: dict[str, Lag] = field(default_factory=dict)
    events: dict[str, AtEvent] = field(default_factory=dict, metadata=DRAWN)
    as_true: bool = False


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no trajectories to look at; None otherwise."""
    data = context.subject.data
    if len(data) < 3:
        return WORDS.text("few")
    return None if np.unique(data.episodes, return_counts=True)[1].max() > 2 else WORDS.text("single")


def run(context: StepContext[Subject]) -> Section:
    """Plot the reward along episodes, compare it at events and elsewhere, and measure lags."""
    subject = context.subject
    rewards, happens = subject.scaled.of(subject.data), events(subject.data)
    figures = measure(subject, rewards, happens)
    pictures = [_picture(subject.data, rewards, happens)]
    return WORDS.section(_statements(figures), _checks(figures), _tables(figures), pictures, figures)


def measure(subject: Subject, rewards: FloatArray, happens: dict[str, BoolArray]) -> ByTime:
    """Compute the figures; ``happens``: where each event is, ``[n]``."""
    data, spread = subject.data, float(rewards.std())
    if spread <= 1e-9 * max(1.0, float(np.abs(rewards).max())):
        return ByTime(0.0, as_true=subject.constant_as_true)
    lags = {name: lag_of(rewards, there, data, subject.rng(WORDS.name)) for name, there in happens.items()}
    if subject.lag is not None:
        lags[TRUE] = subject.lag
    at_events = {name: _at_event(rewards / spread, there, data.episodes) for name, there in happens.items()}
    return ByTime(spread, lags, at_events)


def _at_event(rewards: FloatArray, there: BoolArray, episodes: IntArray) -> AtEvent:
    def difference(at: IntArray) -> float:
        inside = there[at]
        return (
            float(rewards[at][inside].mean() - rewards[at][~inside].mean()) if 0 < inside.sum() < len(at) else math.nan
        )

    found = over_episodes(difference, episodes)
    return AtEvent(int(there.sum()), found.value, found.low, found.high)


def _statements(figures: ByTime) -> Iterator[Statement]:
    if not figures.spread and not figures.as_true:
        yield WORDS.statement("constant")
    for name, event in figures.events.items():
        lag = figures.lags[name]
        if event.clear and lag.significant:
            yield WORDS.statement("at_event", abs(event.difference), name=name, event=event)
        elif lag.off and abs(lag.correlation) >= FOLLOWS:
            yield WORDS.statement("follows", abs(lag.correlation), name=name, lag=lag)
    lag_to_truth = figures.lags.get(TRUE)
    if lag_to_truth is not None and not _in_time(lag_to_truth):
        yield WORDS.statement(
            "late" if lag_to_truth.significant else "unrelated", abs(lag_to_truth.correlation), lag=lag_to_truth
        )


def _checks(figures: ByTime) -> list[Check]:
    if TRUE not in figures.lags:
        return []
    lag = figures.lags[TRUE]
    return [WORDS.check("late" if lag.significant else "unrelated", _in_time(lag), float(lag.steps), lag=lag)]


def _in_time(lag: Lag) -> bool:
    return lag.significant and lag.steps == 0


def _tables(figures: ByTime) -> list[Table]:
    rows: list[list[Any]] = [
        [name, event.steps, f"{event.difference:+.2f}", *_cells(figures.lags[name])]
        for name, event in figures.events.items()
    ]
    if TRUE in figures.lags and TRUE not in figures.events:
        rows.append([TRUE, "", "", *_cells(figures.lags[TRUE])])
    return [WORDS.table("events", rows)] if rows else []


def _cells(lag: Lag) -> list[str]:
    return [str(lag.steps) if lag.significant else "–", f"{lag.correlation:.2f}", f"{lag.chance:.2f}"]


def _picture(data: Transitions, rewards: FloatArray, happens: dict[str, BoolArray]) -> Picture:
    columns = {"given reward": {"given reward": rewards}}
    if np.isfinite(data.rewards).all():
        scaled = {"given, rescaled": rescaled(rewards, data.rewards), "true reward": data.rewards}
        columns["true, and given on its scale"] = scaled
    return WORDS.picture("episodes", draw(data, columns, telling_episodes(data, rewards), happens))


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
