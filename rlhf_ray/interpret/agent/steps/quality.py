"""Step: how good the world model is on held-out levels, beside baselines, and up to which step to trust it."""

from __future__ import annotations

import json

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, load_world
from rlhf_ray.interpret.agent.world_model.quality import HorizonCurve, Quality, measure
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.agent.world_model.windows import as_policy_actions, cut_out
from rlhf_ray.study.plots import draw_observation, png
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "quality"
TITLE = "How good the world model is"

EPISODES, WINDOWS = 400, 400
"""Held-out episodes at most, and windows of them at effort 1."""
STEPS = 24
"""Horizon; less if episodes are shorter."""
TOLD = (1, 2, 4, 8, 16, 23)
STRIPS, SHOWN = 3, (0, 1, 2, 3, 4, 6, 8, 12)
COLOURS = {"model": "#4477aa", "copy_last": "#ee6677", "mean_frame": "#999933", "shuffled_actions": "#aa3377"}


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to measure; None if there is a world model."""
    there = all(name in context.folders for name in ("recording", "world_model"))
    return None if there else "There is no world model of the agent's environment."


def run(context: AgentContext) -> Section:
    """Measure, and write ``quality.json``."""
    recording = context.folders["recording"]
    world = load_world(context.folders["world_model"], agent=context.subject.agent, recording=recording)
    episodes = split_episodes(context, "test", EPISODES)
    steps = int(min(STEPS, max(1, episodes.lengths.max() - world.context + 1)))
    starts = max(1, round(WINDOWS * context.subject.effort / len(episodes)))
    context.say(f"world model: measuring {starts} windows of each of {len(episodes)} episodes")
    quality = measure(world, context.subject.agent, episodes, steps=steps, starts=starts, seed=context.subject.seed)
    values = {**quality.as_json(), "world": world.digest, "held_out": not context.warnings}
    write_text(context.out / "quality.json", json.dumps(values, indent=1))
    pictures = [Picture("horizon", _horizon(quality), _HORIZON)]
    if is_image(context.subject.agent.observation_space):
        pictures.append(
            Picture("strips", _strips(world, context.subject.agent, episodes, steps, context.subject.seed), _STRIPS)
        )
    return Section(NAME, TITLE, _statements(quality), _checks(quality), (_table(quality),), tuple(pictures), values)


_HORIZON = (
    "Left: mean squared error of open-loop predictions (recorded actions) over the horizon, beside baselines. Next: how often the "
    "agent, acting inside the model, prefers the action that it prefers in reality, beside the share of its most common action "
    "(dashed), and the cosine of its memory. Right, for images: the error of pixels that were in view at the start, and of those "
    "that scrolled in since (dotted: mean frame). Bands: 95 % bootstrap intervals over episodes. Grey: beyond the valid horizon."
)
_STRIPS = (
    "Real episodes (upper rows) and the model's open-loop predictions from the same three frames, with the same actions (lower "
    "rows). Step 0 is a reconstruction."
)


def _statements(quality: Quality) -> tuple[Statement, ...]:
    horizon = quality.valid_horizon
    found = []
    if horizon < 2:
        trusted = "can't be trusted for a single step" if horizon == 0 else "can be trusted for one step only"
        text = f"The world model {trusted}: what tools find inside it beyond that says nothing about the agent.{_why(quality)}"
        text += " Raise --effort: it records more and trains longer."
        found.append(Statement("warning", text, 2.0))
    return tuple(found)


def _why(quality: Quality) -> str:
    """Return the figures of the first step that can't be trusted; nothing if there are none."""
    at = min(quality.valid_horizon + 1, quality.steps)
    if np.isnan([quality.agreement.mean[at], quality.ratio(at)]).any():
        return ""
    return (
        f" At step {at}, the agent prefers the same action in it as in reality in {quality.agreement.mean[at]:.0%} of the windows "
        f"(its most common action: {quality.majority:.0%}), and the model's error is {quality.ratio(at, 'mean_frame'):.2f} of the "
        f"mean observation's and {quality.ratio(at):.2f} of the last one's."
    )


def _checks(quality: Quality) -> tuple[Check, ...]:
    shuffled = float(quality.errors["shuffled_actions"].mean[1] / quality.errors["model"].mean[1])
    ratio, skill = quality.ratio(1), quality.skill(1)
    return (
        _check(
            "one step ahead beats the last observation", ratio < 1, ratio, "error ratio < 1", "repeating it is better"
        ),
        _check("one step ahead beats the mean observation", skill > 0, skill, "skill > 0", "the mean is better"),
        _check(
            "actions matter", shuffled > 1.1, shuffled, "> 1.1 times the error", "other actions predict about as well"
        ),
    )


def _check(name: str, passed: bool, value: float, bound: str, says: str) -> Check:
    if np.isnan(value):
        return Check(name, None, None, bound, "There was nothing to measure.")
    return Check(name, bool(passed), value, bound, "" if passed else f"The world model is no use: {says}.")


def _table(quality: Quality) -> Table:
    rows = []
    for step in (step for step in TOLD if step <= quality.steps and np.isfinite(quality.errors["model"].mean[step])):
        rows.append(
            [
                step,
                *(_with_interval(quality.errors[name], step, ".2g") for name in COLOURS),
                f"{quality.skill(step):.2f}",
                _with_interval(quality.agreement, step, ".2f"),
                _with_interval(quality.memory, step, ".3f") if quality.memory is not None else "–",
            ]
        )
    auc = ", ".join(
        f"{name} {of[0]:.2f} ({of[1]:.2f} to {of[2]:.2f})"
        for name, of in (("rewards", quality.reward), ("ends", quality.end))
        if not np.isnan(of[0])
    )
    trusted = (
        f"The world model can be trusted for {quality.valid_horizon} of {quality.steps} steps (its valid horizon). "
    )
    return Table(
        [
            "step",
            *(name.replace("_", " ") for name in COLOURS),
            "skill over the mean",
            "action agreement",
            "memory cosine",
        ],
        rows,
        f"{trusted}{quality.windows} windows, with 95 % intervals; most common action: {quality.majority:.2f}."
        + (f" AUC over all steps: {auc}." if auc else ""),
    )


def _with_interval(curve: HorizonCurve, step: int, form: str) -> str:
    if np.isnan(curve.mean[step]):
        return "–"
    return f"{curve.mean[step]:{form}} ({curve.low[step]:{form}} to {curve.high[step]:{form}})"


def _horizon(quality: Quality) -> bytes:
    pixels = any(not np.isnan(of["model"].mean).all() for of in (quality.visible, quality.revealed) if of)
    figure = Figure((12.0 if pixels else 8.0, 3.4), layout="constrained")
    errors, closed, *split = figure.subplots(1, 3 if pixels else 2)
    steps = np.arange(quality.steps + 1)
    for name, colour in COLOURS.items():
        _draw(errors, steps, quality.errors[name], colour, name.replace("_", " "))
    errors.set(xlabel="step", ylabel="mean squared error", ylim=(0, None))
    for axes in split:
        for kind, colour in (("visible", "#4477aa"), ("revealed", "#ee7733")):
            curves = getattr(quality, kind)
            if curves and not np.isnan(curves["model"].mean).all():
                _draw(
                    axes, steps, curves["model"], colour, "in view at the start" if kind == "visible" else "scrolled in"
                )
                axes.plot(steps, curves["mean_frame"].mean, ":", color=colour)
        axes.set(xlabel="step", ylabel="mean squared error", ylim=(0, None))
    _draw(closed, steps, quality.agreement, "#4477aa", "action agreement")
    closed.axhline(quality.majority, color="#4477aa", ls="--", lw=1)
    if quality.memory is not None:
        _draw(closed, steps, quality.memory, "#228833", "memory cosine")
    closed.set(xlabel="step", ylim=(0, 1.02))
    for axes in (errors, closed, *split):
        if quality.valid_horizon < quality.steps:
            axes.axvspan(quality.valid_horizon + 0.5, quality.steps, color="#bbbbbb", alpha=0.35, lw=0)
        axes.set_xlim(0, quality.steps)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=7, frameon=False)
    return png(figure)


def _draw(axes: Axes, steps: IntArray, curve: HorizonCurve, colour: str, label: str) -> None:
    axes.plot(steps, curve.mean, color=colour, label=label)
    axes.fill_between(steps, curve.low, curve.high, color=colour, alpha=0.2, lw=0)


def _strips(world: RecurrentWorld, agent: Agent, episodes: Episodes, steps: int, seed: int) -> bytes:
    """Draw some real and predicted images, from the middle of the longest of a few episodes drawn at random."""
    rng = np.random.default_rng([seed, 12])
    long = np.flatnonzero(episodes.lengths >= world.context)
    drawn = rng.permutation(long)[: 8 * STRIPS]
    rows = drawn[np.argsort(-episodes.lengths[drawn], kind="stable")][:STRIPS]
    firsts = np.maximum(0, np.minimum(episodes.lengths[rows] // 4, episodes.lengths[rows] - world.context))
    windows = cut_out(episodes, rows, firsts, world.context + steps + 1)
    last = world.context - 1
    actions = as_policy_actions(windows.actions, agent.action_space)
    context = torch.as_tensor(windows.observations[:, : world.context]), actions[:, :last]
    with torch.no_grad():
        made = simulate(
            world, agent, *context, torch.as_tensor(windows.memory[:, last]), steps, given=actions[:, last:]
        )
    predicted = made.observations.clamp(0, 255).round().byte().numpy()
    shown = [step for step in SHOWN if step <= steps]
    figure = Figure((0.95 * len(shown) + 0.4, 2.1 * len(rows)), layout="constrained")
    grid = figure.subplots(2 * len(rows), len(shown), squeeze=False)
    for i in range(len(rows)):
        for column, step in enumerate(shown):
            upper, lower = grid[2 * i, column], grid[2 * i + 1, column]
            if last + step > windows.lengths[i]:
                upper.set_axis_off()
                lower.set_axis_off()
                continue
            draw_observation(upper, windows.observations[i, last + step])
            draw_observation(lower, predicted[i, step])
            if i == 0:
                upper.set_title(f"step {step}", fontsize=8)
            if column == 0:
                upper.set_ylabel("real", fontsize=8)
                lower.set_ylabel("model", fontsize=8)
    return png(figure)


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=why_not)
