"""Train a world model on the recording, with the agent inside, and measure how far to trust it on held-out levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import gymnasium as gym
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.recorded import Windows
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.subject import NO_RECORDING, AgentContext, split_episodes
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, load_world, recording_digest
from rlhf_ray.interpret.agent.world_model.quality import HorizonCurve, Quality, cut_out, measure
from rlhf_ray.interpret.agent.world_model.simulate import World, simulate
from rlhf_ray.interpret.agent.world_model.training import (
    WorldTraining,
    WorldTrainingProgress,
    as_policy_actions,
    train_world,
)
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.study.curves import BLUE
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "world_model", "World model"

BATCHES = 1500
"""Gradient steps at effort 1; on images of 16x16 pixels, about 140 ms of CPU time each."""
FEWEST = 300
EPISODES, WINDOWS = 400, 400
"""Held-out episodes at most, and windows of them at effort 1."""
STEPS = 24
"""Horizon; less if episodes are shorter."""
SENSITIVE = 1.1
"""Error with the actions of another window, in errors with its own, from which on actions matter to the model."""
TOLD = (1, 2, 4, 8, 16, 23)
STRIPS, SHOWN = 3, (0, 1, 2, 3, 4, 6, 8, 12)
COLOURS = {"model": "#4477aa", "copy_last": "#ee6677", "mean_frame": "#999933", "shuffled_actions": "#aa3377"}
HORIZON = """\
Left: mean squared error of open-loop predictions (recorded actions) over the horizon, beside baselines. Right: how \
often the agent, acting inside the model, prefers the action that it prefers in reality, beside the share of its most \
common action (dashed), and the cosine of its memory. Bands: 95 % intervals over episodes. Grey: beyond the valid \
horizon."""
REAL = """\
Real episodes (upper rows) and the model's open-loop predictions from the same frames, with the same actions (lower \
rows). Step 0 is a reconstruction."""
TRAINING = """\
Training. Left: share of the observations' variance that reconstructions leave unexplained. Right: how badly the model \
predicts what it sees next."""


@dataclass(frozen=True)
class WorldModel:
    """What the step reports."""

    world: str  # the model's digest
    parameters: int  # how many it has
    last: WorldTrainingProgress  # the last batch of the training
    quality: Quality  # on held-out levels


def world_of(context: AgentContext) -> World | None:
    """Load the world model; None if this step trained none."""
    folder = context.folders.get(NAME)
    return None if folder is None else load_world(folder, agent=context.subject.agent)


def valid_horizon(context: AgentContext) -> int | None:
    """Return the steps that the world model can be trusted for; None without one."""
    figures = context.figures(NAME, WorldModel)
    return None if figures is None else figures.quality.valid_horizon


def why_not(context: AgentContext) -> str | None:
    """Observations must be one Box, and actions Discrete or Box."""
    agent = context.subject.agent
    if "recording" not in context.folders:
        return NO_RECORDING
    if not isinstance(agent.observation_space, gym.spaces.Box):
        return f"A world model needs observations that are one array, not {agent.observation_space}."
    if not isinstance(agent.action_space, gym.spaces.Discrete | gym.spaces.Box):
        return f"A world model needs Discrete or Box actions, not {agent.action_space}."
    return None


def run(context: AgentContext) -> Section:
    """Train, and write the model to ``context.out``."""
    subject, recording = context.subject, context.folders["recording"]
    settings = WorldTraining(batches=subject.count(BATCHES, FEWEST), seed=subject.seed)
    windows = Windows(recording, settings.length, split="train", agent=subject.agent)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches: list[WorldTrainingProgress] = []

    def watch(progress: WorldTrainingProgress) -> None:
        batches.append(progress)
        context.say(
            f"world model: batch {progress.batch} of {progress.batches}, {progress.unexplained:.1%} of observations unexplained, "
            f"divergence {progress.divergence:.2f} nats"
        )

    world = train_world(subject.agent, windows, settings, unfinished=context.unfinished, device=device, watch=watch)
    made_from = {"environment": subject.environment, "recording": recording_digest(recording)}
    world.about = {**made_from, "settings": asdict(settings), "device": device}
    world.save(context.out)
    last, parameters = batches[-1], sum(parameter.numel() for parameter in world.parameters())
    losses = [f"{last.unexplained:.1%}", round(last.divergence, 2), round(last.reward, 4), round(last.end, 4)]
    row = [f"{parameters:,}", last.batch, f"{len(windows):,} of {settings.length} observations", *losses]
    columns = ["parameters", "batches", "windows", "observations unexplained"]
    columns += ["divergence (nats)", "reward loss", "end loss"]
    training = Table(columns, [row], "The last batch of the training, on levels of the training split.")
    quality, pictures = _measured(context, load_world(context.out, agent=subject.agent))
    pictures.append(Picture("training", _curves(batches), TRAINING))
    figures = WorldModel(world.digest, parameters, last, quality)
    return Section(NAME, TITLE, _checks(quality), (), [_table(quality), training], pictures, (), values_of(figures))


def _measured(context: AgentContext, world: RecurrentWorld) -> tuple[Quality, list[Picture]]:
    """Measure the model on held-out episodes, and draw what it predicts."""
    subject, episodes = context.subject, split_episodes(context, "test", EPISODES)
    steps = int(min(STEPS, max(1, episodes.lengths.max() - world.context + 1)))
    starts = max(1, round(WINDOWS * subject.effort / len(episodes)))
    context.say(f"world model: measuring {starts} windows of each of {len(episodes)} episodes")
    quality = measure(world, subject.agent, episodes, steps=steps, starts=starts, seed=subject.seed)
    pictures = [Picture("horizon", _draw_horizon(quality), HORIZON)]
    if is_image(subject.agent.observation_space):
        pictures.append(Picture("strips", _draw_strips(world, subject.agent, episodes, steps, subject.seed), REAL))
    return quality, pictures


def _checks(quality: Quality) -> list[Check]:
    shuffled = float(quality.errors["shuffled_actions"].mean[1] / quality.errors["model"].mean[1])
    useless = "Found inside the model is nothing about the agent: raise --effort, which records more and trains longer."
    found = [
        ("error one step ahead, of repeating the last observation", quality.ratio(1), quality.ratio(1) < 1, "< 1"),
        ("skill one step ahead, over the mean observation", quality.skill(1), quality.skill(1) > 0, "> 0"),
        ("error with another window's actions, of that with its own", shuffled, shuffled > SENSITIVE, f"> {SENSITIVE}"),
    ]
    return [
        Check.of(name, None if np.isnan(value) else bool(good), value, bound, useless)
        for name, value, good, bound in found
    ]


def _table(quality: Quality) -> Table:
    rows = []
    for step in TOLD:
        if step <= quality.steps and np.isfinite(quality.errors["model"].mean[step]):
            errors = [_cell(quality.errors[name], step, ".2g") for name in COLOURS]
            memory = _cell(quality.memory, step, ".3f") if quality.memory is not None else "–"
            rows.append([step, *errors, f"{quality.skill(step):.2f}", _cell(quality.agreement, step, ".2f"), memory])
    names = [name.replace("_", " ") for name in COLOURS]
    columns = ["step", *names, "skill over the mean", "action agreement", "memory cosine"]
    caption = (
        f"Valid horizon: {quality.valid_horizon} of {quality.steps} steps. {quality.windows} windows of held-out levels, with 95 % "
        f"intervals over episodes; most common action {quality.majority:.2f}; rank correlation of rewards {quality.reward:.2f}, "
        f"AUC of predicted ends {quality.end:.2f}."
    )
    return Table(columns, rows, caption)


def _cell(curve: HorizonCurve, step: int, form: str) -> str:
    if np.isnan(curve.mean[step]):
        return "–"
    return f"{curve.mean[step]:{form}} ({curve.low[step]:{form}} to {curve.high[step]:{form}})"


def _draw_horizon(quality: Quality) -> bytes:
    figure = Figure((8.0, 3.4), layout="constrained")
    errors, closed = figure.subplots(1, 2)
    steps = np.arange(quality.steps + 1)
    for name, colour in COLOURS.items():
        _draw(errors, steps, quality.errors[name], colour, name.replace("_", " "))
    errors.set(ylabel="mean squared error", ylim=(0, None))
    _draw(closed, steps, quality.agreement, COLOURS["model"], "action agreement")
    closed.axhline(quality.majority, color=COLOURS["model"], ls="--", lw=1)
    if quality.memory is not None:
        _draw(closed, steps, quality.memory, "#228833", "memory cosine")
    closed.set(ylim=(0, 1.02))
    for axes in (errors, closed):
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
    frames = np.stack([windows.observations[:, last + shown], predicted[:, shown]], 1)  # [episodes, 2, shown, …]
    frames[np.broadcast_to((last + shown > windows.lengths[:, None])[:, None], frames.shape[:3])] = 255  # after the end
    rows = [side for _ in windows.lengths for side in ("real", "model")]
    return strip(frames.reshape(-1, *frames.shape[2:]), None, rows, [f"step {step}" for step in shown])


def _curves(batches: Sequence[WorldTrainingProgress]) -> bytes:
    figure = Figure((7.2, 2.6), layout="constrained")
    labels = {"unexplained": "unexplained", "divergence": "divergence (nats)"}
    for axes, (name, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        axes.plot([each.batch for each in batches], [getattr(each, name) for each in batches], color=BLUE)
        axes.set(xlabel="batch", ylabel=label, yscale="log")
    return png(figure)


STEP = Step(NAME, TITLE, run, needs=("recording",), why_not=why_not)
