"""Section: the reward along trajectories, at events, and how late it comes."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.interpret.reward.along import Lag, draw, events, lag_of, rescaled, telling_episodes
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "along"
TITLE = "Reward along trajectories"

STEPS = 5000
"""Most steps that lags are measured on."""
CLEAR = 0.5
"""Difference between the reward at an event and elsewhere, in standard deviations, from which the verdict names it."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no trajectories to look along; None otherwise."""
    subject = context.subject
    if len(subject.data) < 3:
        return "There are too few steps."
    lengths = np.unique(subject.data.episodes, return_counts=True)[1]
    return None if lengths.max() > 2 else "The data are single steps, not episodes."


def run(context: StepContext[Subject]) -> Section:
    """Plot the reward along episodes, compare it at events and elsewhere, and measure lags."""
    subject = context.subject
    data, rewards = subject.data, subject.reward.of(subject.data)
    spread = float(rewards.std())
    found, true = events(data), data.rewards
    known = bool(np.isfinite(true).all())
    columns = {"given reward": {"given reward": rewards}}
    if known:
        columns["true, and given on its scale"] = {"given, rescaled": rescaled(rewards, true), "true reward": true}
    image = draw(data, columns, telling_episodes(data, rewards), found)
    caption = "Three episodes: largest, middle and smallest sum of the given reward. Marks: events. Dashed: mean between changes."
    pictures = [Picture("episodes", image, caption)]
    if spread <= 1e-9 * max(1.0, float(np.abs(rewards).max())):
        says = "The reward is the same at every step of every episode."
        return Section(NAME, TITLE, [Statement("warning", says)], pictures=pictures, values={"lags": {}})
    causes: dict[str, FloatArray | BoolArray] = dict(found)
    if known and np.ptp(true) > 0:
        causes["true reward"] = true
    rng = subject.rng(NAME)
    part = slice(0, STEPS)
    lags = {
        name: lag_of(rewards[part], np.asarray(cause[part], np.float64), data.episodes[part], rng)
        for name, cause in causes.items()
    }
    rows, statements = [], []
    for name, happens in found.items():
        difference = float(rewards[happens].mean() - rewards[~happens].mean()) / spread
        lag = lags[name]
        rows.append([name, int(happens.sum()), f"{difference:+.2f}", *_lag_cells(lag)])
        if abs(difference) >= CLEAR and lag.significant:
            way = "higher" if difference > 0 else "lower"
            text = f"At {_named(name)}, the reward is {abs(difference):.1f} standard deviations {way} than elsewhere."
            statements.append(Statement("rewards", text, abs(difference)))
        elif lag.significant and lag.steps and abs(lag.correlation) >= 0.3:
            text = f"The reward moves with {_named(name)}, {_late(lag)} (correlation {lag.correlation:.2f})."
            statements.append(Statement("rewards", text, abs(lag.correlation)))
    checks = []
    if "true reward" in lags:
        lag = lags["true reward"]
        if "true reward" not in found:
            rows.append(["true reward", "", "", *_lag_cells(lag)])
        passed = lag.significant and lag.steps == 0
        says = (
            f"The reward follows the true reward {_late(lag)} (correlation {lag.correlation:.2f})."
            if lag.significant
            else f"The reward doesn't move with the true reward at any lag up to 10 steps (correlation {lag.correlation:.2f})."
        )
        checks.append(Check("lag to the true reward", passed, float(lag.steps), "0", "" if passed else says))
        if not passed:
            statements.append(Statement("warning", says, abs(lag.correlation)))
    heads = ["event", "steps", "reward there, in standard deviations", "lag in steps", "correlation", "by chance"]
    table = Table(
        heads,
        rows,
        "Events. A positive lag: the reward comes after the event. By chance: 95 % of permutations are below.",
    )
    values = {"spread": spread, "lags": {name: asdict(lag) for name, lag in lags.items()}}
    return Section(NAME, TITLE, statements, checks, [table] if rows else [], pictures, values)


def _lag_cells(lag: Lag) -> list[str]:
    return [str(lag.steps) if lag.significant else "–", f"{lag.correlation:.2f}", f"{lag.chance:.2f}"]


def _late(lag: Lag) -> str:
    steps = f"{abs(lag.steps)} step{'s' if abs(lag.steps) > 1 else ''}"
    if lag.steps == 0:
        return "without delay"
    return f"{steps} late" if lag.steps > 0 else f"{steps} early"


def _named(name: str) -> str:
    if name == "terminated":
        return "the end of an episode"
    return f"jumps of {name.removeprefix('state.')}" if name.startswith("state.") else "a true reward that is not zero"


STEP = Step(NAME, TITLE, run, why_not=why_not)
