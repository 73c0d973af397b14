"""Pictures of a reward before and after preprocessing."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.reward.preprocess.problem import Problem
from rlhf_ray.reward.functions.shaped import ShapedReward
from rlhf_ray.study.plots import png

BEFORE, AFTER = "#D55E00", "#0072B2"
"""Vermilion and blue, told apart by colour-blind people."""


def before_and_after(reward: ShapedReward, problem: Problem) -> dict[str, bytes]:
    """Draw how sparse the reward is, and it along an episode if there is one of several steps: PNG by name."""
    steps = problem.steps
    before, after = reward.base.of(steps), reward.of(steps)
    found = {"sizes": sizes(before, after)}
    names, counts = np.unique(steps.episodes, return_counts=True)
    if counts.max() > 2:
        returns = [np.abs(before[steps.episodes == name]).sum() for name in names]
        at = np.flatnonzero(steps.episodes == names[int(np.argsort(returns)[len(names) // 2])])
        at = at[np.argsort(steps.steps[at])]
        found["episode"] = episode(steps.steps[at], before[at], after[at])
    return found


def sizes(before: FloatArray, after: FloatArray) -> bytes:
    """Draw the absolute rewards of all steps, from the largest to the smallest."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    share = 100 * (np.arange(len(before)) + 1) / len(before)
    axes.plot(share, np.sort(np.abs(before))[::-1], color=BEFORE, linestyle="--", label="before")
    axes.plot(share, np.sort(np.abs(after))[::-1], color=AFTER, label="after")
    axes.set(xlabel="steps, the largest reward first (%)", ylabel="|reward|", xlim=(0, 100))
    axes.legend(frameon=False)
    return png(figure, dpi=110)


def episode(steps: IntArray, before: FloatArray, after: FloatArray) -> bytes:
    """Draw the reward along an episode, before and after, each with its own scale."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for one, values, colour, name in zip(axes, (before, after), (BEFORE, AFTER), ("before", "after"), strict=True):
        one.axhline(0, color="0.8", linewidth=0.8)
        one.plot(steps, values, color=colour, drawstyle="steps-mid")
        one.set_ylabel(name)
    axes[1].set_xlabel("step of the episode")
    return png(figure, dpi=110)
