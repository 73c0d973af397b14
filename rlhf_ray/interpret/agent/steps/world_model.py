"""Step: train a world model on the recording, with the agent inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import gymnasium as gym
import torch
from matplotlib.figure import Figure

from rlhf_ray.agents.recorded import Windows
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.model import recording_digest
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, WorldTrainingProgress, train_world
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step

NAME = "world_model"
TITLE = "World model"

BATCHES = 1500
"""Gradient steps at effort 1; on images of 16x16 pixels, about 140 ms of CPU time each."""
FEWEST = 300


def why_not(context: AgentContext) -> str | None:
    """Observations must be one Box, and actions Discrete or Box."""
    if "recording" not in context.folders:
        return "There is no recording of the agent."
    if not isinstance(context.subject.agent.observation_space, gym.spaces.Box):
        return f"A world model needs observations that are one array, not {context.subject.agent.observation_space}."
    if not isinstance(context.subject.agent.action_space, gym.spaces.Discrete | gym.spaces.Box):
        return f"A world model needs Discrete or Box actions, not {context.subject.agent.action_space}."
    return None


def run(context: AgentContext) -> Section:
    """Train, and write the model to ``context.out``."""
    recording = context.folders["recording"]
    settings = WorldTraining(batches=max(FEWEST, round(BATCHES * context.subject.effort)), seed=context.subject.seed)
    windows = Windows(recording, settings.length, split="train", agent=context.subject.agent)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made: list[WorldTrainingProgress] = []

    def watch(progress: WorldTrainingProgress) -> None:
        made.append(progress)
        context.say(
            f"world model: batch {progress.batch} of {progress.batches}, {progress.unexplained:.1%} of observations unexplained, "
            f"divergence {progress.divergence:.2f} nats"
        )

    world = train_world(
        context.subject.agent, windows, settings, unfinished=context.unfinished, device=device, watch=watch
    )
    world.about = {
        "environment": context.subject.environment,
        "recording": recording_digest(recording),
        "settings": asdict(settings),
        "device": device,
    }
    world.save(context.out)
    last = made[-1]
    parameters = sum(parameter.numel() for parameter in world.parameters())
    table = Table(
        [
            "parameters",
            "batches",
            "windows",
            "observations unexplained",
            "divergence (nats)",
            "reward loss",
            "end loss",
        ],
        [
            [
                f"{parameters:,}",
                last.batch,
                f"{len(windows):,} of {settings.length} observations",
                f"{last.unexplained:.1%}",
                round(last.divergence, 2),
                round(last.reward, 4),
                round(last.end, 4),
            ]
        ],
        "The last batch of the training, on levels of the training split. How good the model is on other levels: next section.",
    )
    caption = (
        "Training. Left: share of the observations' variance that reconstructions leave unexplained. "
        "Right: how badly the model predicts what it sees next."
    )
    values = {
        "world": world.digest,
        "parameters": parameters,
        "batches": last.batch,
        "unexplained": last.unexplained,
        "divergence": last.divergence,
    }
    return Section(NAME, TITLE, (), (), (table,), (Picture("training", _curves(made), caption),), values)


def _curves(made: Sequence[WorldTrainingProgress]) -> bytes:
    figure = Figure((7.2, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    batches = [progress.batch for progress in made]
    left.plot(batches, [progress.unexplained for progress in made], color="#4477aa")
    left.set(xlabel="batch", ylabel="unexplained", yscale="log")
    right.plot(batches, [progress.divergence for progress in made], color="#4477aa")
    right.set(xlabel="batch", ylabel="divergence (nats)", yscale="log")
    return png(figure)


STEP = Step(NAME, TITLE, run, needs=("recording",), why_not=why_not)
