"""Train a world model on the recording, with the agent inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import gymnasium as gym
import torch
from matplotlib.figure import Figure

from rlhf_ray.agents.recorded import Windows
from rlhf_ray.interpret.agent.subject import WORDS as SHARED
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.model import load_world, recording_digest
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, WorldTrainingProgress, train_world
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.study.plots import BLUE, png
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

BATCHES = 1500
"""Gradient steps at effort 1; on images of 16x16 pixels, about 140 ms of CPU time each."""
FEWEST = 300


@dataclass(frozen=True)
class WorldModel:
    """What the step reports.

    Attributes:
        world: the model's digest.
        parameters: how many it has.
        last: the last batch of the training.
    """

    world: str
    parameters: int
    last: WorldTrainingProgress


def world_of(context: AgentContext) -> World | None:
    """Load the world model; None if this step trained none."""
    folder = context.folders.get(WORDS.name)
    return None if folder is None else load_world(folder, agent=context.subject.agent)


def why_not(context: AgentContext) -> str | None:
    """Observations must be one Box, and actions Discrete or Box."""
    agent = context.subject.agent
    if "recording" not in context.folders:
        return SHARED.text("no_recording")
    if not isinstance(agent.observation_space, gym.spaces.Box):
        return WORDS.text("observations", space=agent.observation_space)
    if not isinstance(agent.action_space, gym.spaces.Discrete | gym.spaces.Box):
        return WORDS.text("actions", space=agent.action_space)
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
    world.about = {
        "environment": subject.environment,
        "recording": recording_digest(recording),
        "settings": asdict(settings),
        "device": device,
    }
    world.save(context.out)
    last, parameters = batches[-1], sum(parameter.numel() for parameter in world.parameters())
    losses = [f"{last.unexplained:.1%}", round(last.divergence, 2), round(last.reward, 4), round(last.end, 4)]
    row = [f"{parameters:,}", last.batch, f"{len(windows):,} of {settings.length} observations", *losses]
    picture = WORDS.picture("training", _curves(batches))
    figures = WorldModel(world.digest, parameters, last)
    return WORDS.section(tables=[WORDS.table("training", [row])], pictures=[picture], figures=figures)


def _curves(batches: Sequence[WorldTrainingProgress]) -> bytes:
    figure = Figure((7.2, 2.6), layout="constrained")
    labels = {"unexplained": "unexplained", "divergence": "divergence (nats)"}
    for axes, (name, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        axes.plot(
            [progress.batch for progress in batches], [getattr(progress, name) for progress in batches], color=BLUE
        )
        axes.set(xlabel="batch", ylabel=label, yscale="log")
    return png(figure)


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording",), why_not=why_not)
