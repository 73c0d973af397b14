"""How good the world model is on held-out levels, beside baselines, and up to which step to trust it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext, no_world
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, load_world
from rlhf_ray.interpret.agent.world_model.quality import HorizonCurve, Quality, measure
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.agent.world_model.windows import as_policy_actions, cut_out
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

EPISODES, WINDOWS = 400, 400
"""Held-out episodes at most, and windows of them at effort 1."""
STEPS = 24
"""Horizon; less if episodes are shorter."""
USEFUL = 2
"""Steps that the valid horizon has to have before what is found inside the model is worth reading."""
SENSITIVE = 1.1
"""Error with the actions of another window, in errors with its own, from which on actions matter to the model."""
TOLD = (1, 2, 4, 8, 16, 23)
STRIPS, SHOWN = 3, (0, 1, 2, 3, 4, 6, 8, 12)
COLOURS = {"model": "#4477aa", "copy_last": "#ee6677", "mean_frame": "#999933", "shuffled_actions": "#aa3377"}
PIXELS = {"visible": "#4477aa", "revealed": "#ee7733"}


def valid_horizon(context: AgentContext) -> int | None:
    """Return the steps that the world model can be trusted for; None if this step has not run."""
    quality = context.figures(WORDS.name, Quality)
    return None if quality is None else quality.valid_horizon


def run(context: AgentContext) -> Section:
    """Measure the world model."""
    subject, recording = context.subject, context.folders["recording"]
    world = load_world(context.folders["world_model"], agent=subject.agent, recording=recording)
    episodes = split_episodes(context, "test", EPISODES)
    steps = int(min(STEPS, max(1, episodes.lengths.max() - world.context + 1)))
    starts = max(1, round(WINDOWS * subject.effort / len(episodes)))
    context.say(f"world model: measuring {starts} windows of each of {len(episodes)} episodes")
    quality = measure(world, subject.agent, episodes, steps=steps, starts=starts, seed=subject.seed)
    pictures = [WORDS.picture("horizon", _draw_horizon(quality))]
    if is_image(subject.agent.observation_space):
        pictures.append(WORDS.picture("strips", _draw_strips(world, subject.agent, episodes, steps, subject.seed)))
    return WORDS.section(_statements(quality), _checks(quality), [_table(quality)], pictures, quality)


def _statements(quality: Quality) -> Iterator[Statement]:
    if quality.valid_horizon < USEFUL:
        step = min(quality.valid_horizon + 1, quality.steps)
        agreement, last, mean = quality.agreement.mean[step], quality.ratio(step), quality.ratio(step, "mean_frame")
        measured = not np.isnan([agreement, last]).any()
        about = {"agreement": agreement, "last": last, "mean": mean, "step": step, "measured": measured}
        yield WORDS.statement("not_trusted", 2.0, quality=quality, **about)


def _checks(quality: Quality) -> Iterator[Check]:
    ratio, skill = quality.ratio(1), quality.skill(1)
    shuffled = float(quality.errors["shuffled_actions"].mean[1] / quality.errors["model"].mean[1])
    outcomes = {"last": (ratio, ratio < 1), "mean": (skill, skill > 0), "actions": (shuffled, shuffled > SENSITIVE)}
    for name, (value, passed) in outcomes.items():
        measured = not np.isnan(value)
        yield WORDS.check(name, bool(passed) if measured else None, value if measured else None, least=SENSITIVE)


def _table(quality: Quality) -> Table:
    rows = []
    for step in TOLD:
        if step <= quality.steps and np.isfinite(quality.errors["model"].mean[step]):
            errors = [_cell(quality.errors[name], step, ".2g") for name in COLOURS]
            memory = _cell(quality.memory, step, ".3f") if quality.memory is not None else "–"
            rows.append([step, *errors, f"{quality.skill(step):.2f}", _cell(quality.agreement, step, ".2f"), memory])
    ordered = {"rewards": quality.reward, "ends": quality.end}
    areas = {name: area for name, area in ordered.items() if not np.isnan(area[0])}
    return WORDS.table("steps", rows, quality=quality, areas=areas)


def _cell(curve: HorizonCurve, step: int, form: str) -> str:
    if np.isnan(curve.mean[step]):
        return "–"
    return f"{curve.mean[step]:{form}} ({curve.low[step]:{form}} to {curve.high[step]:{form}})"


def _draw_horizon(quality: Quality) -> bytes:
    pixels = {kind: getattr(quality, kind) for kind in PIXELS}
    pixels = {kind: curves for kind, curves in pixels.items() if curves and not np.isnan(curves["model"].mean).all()}
    figure = Figure((12.0 if pixels else 8.0, 3.4), layout="constrained")
    errors, closed, *split = figure.subplots(1, 3 if pixels else 2)
    steps = np.arange(quality.steps + 1)
    for name, colour in COLOURS.items():
        _draw(errors, steps, quality.errors[name], colour, name.replace("_", " "))
    for kind, curves in pixels.items():
        _draw(split[0], steps, curves["model"], PIXELS[kind], WORDS.text(kind))
        split[0].plot(steps, curves["mean_frame"].mean, ":", color=PIXELS[kind])
    for axes in (errors, *split):
        axes.set(ylabel="mean squared error", ylim=(0, None))
    _draw(closed, steps, quality.agreement, COLOURS["model"], "action agreement")
    closed.axhline(quality.majority, color=COLOURS["model"], ls="--", lw=1)
    if quality.memory is not None:
        _draw(closed, steps, quality.memory, "#228833", "memory cosine")
    closed.set(ylim=(0, 1.02))
    for axes in (errors, closed, *split):
        if quality.valid_horizon < quality.steps:
            axes.axvspan(quality.valid_horizon + 0.5, quality.steps, color="#bbbbbb", alpha=0.35, lw=0)
        axes.set(xlabel="step", xlim=(0, quality.steps))
        axes.legend(fontsize=7, frameon=False)
    return png(figure)


def _draw(axes: Axes, steps: IntArray, curve: HorizonCurve, colour: str, label: str) -> None:
    axes.plot(steps, curve.mean, color=colour, label=label)
    axes.fill_between(steps, curve.low, curve.high, color=colour, alpha=0.2, lw=0)


def _draw_strips(world: RecurrentWorld, agent: Agent, episodes: Episodes, steps: int, seed: int) -> bytes:
    """Draw some real and predicted images, from the middle of the longest of a few episodes drawn at random."""
    rng = np.random.default_rng([seed, 12])
    long = np.flatnonzero(episodes.lengths >= world.context)
    drawn = rng.permutation(long)[: 8 * STRIPS]
    chosen = drawn[np.argsort(-episodes.lengths[drawn], kind="stable")][:STRIPS]
    lengths = episodes.lengths[chosen]
    firsts = np.maximum(0, np.minimum(lengths // 4, lengths - world.context))
    windows = cut_out(episodes, chosen, firsts, world.context + steps + 1)
    last = world.context - 1
    actions = as_policy_actions(windows.actions, agent.action_space)
    context = torch.as_tensor(windows.observations[:, : world.context]), actions[:, :last]
    memory = torch.as_tensor(windows.memory[:, last])
    with torch.no_grad():
        simulated = simulate(world, agent, *context, memory, steps, given=actions[:, last:])
    predicted = simulated.observations.clamp(0, 255).round().byte().numpy()
    shown = np.array([step for step in SHOWN if step <= steps])
    frames = np.stack(
        [windows.observations[:, last + shown], predicted[:, shown]], 1
    )  # [episodes, real and model, shown, …]
    frames[np.broadcast_to((last + shown > windows.lengths[:, None])[:, None], frames.shape[:3])] = 255  # after the end
    rows = [side for _ in windows.lengths for side in ("real", "model")]
    return strip(frames.reshape(-1, *frames.shape[2:]), None, rows, [f"step {step}" for step in shown])


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording", "world_model"), why_not=no_world)
