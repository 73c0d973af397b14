"""Step: train a world model on the recording, with the agent inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import gymnasium as gym
import torch
from matplotlib.figure import Figure

from rlhf_ray.interpret.agent.chain import Work
from rlhf_ray.interpret.agent.recorded import Windows
from rlhf_ray.interpret.agent.world_model.model import recording_digest
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, WorldTrainingProgress, train_world
from rlhf_ray.interpret.reward.drawing import png
from rlhf_ray.interpret.section import Picture, Section, Table

NAME = "world_model"
TITLE = "World model"
AFTER: tuple[str, ...] = ("recording",)

BATCHES = 1500
"""Gradient steps at effort 1; on images of 16x16 pixels, about 140 ms of CPU time each."""
FEWEST = 300


def unsuitable(work: Work) -> str | None:
    """Observations must be one Box, and actions Discrete or Box."""
    if "recording" not in work.folders:
        return "There is no recording of the agent."
    if not isinstance(work.agent.observation_space, gym.spaces.Box):
        return f"A world model needs observations that are one array, not {work.agent.observation_space}."
    if not isinstance(work.agent.action_space, gym.spaces.Discrete | gym.spaces.Box):
        return f"A world model needs Discrete or Box actions, not {work.agent.action_space}."
    return None


def run(work: Work) -> Section:
    """Train, and write the model to ``work.out``."""
    recording = work.folders["recording"]
    settings = WorldTraining(batches=max(FEWEST, round(BATCHES * work.effort)), seed=work.seed)
    windows = Windows(recording, settings.length, split="train", agent=work.agent)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made: list[WorldTrainingProgress] = []

    def watch(progress: WorldTrainingProgress) -> None:
        made.append(progress)
        work.told(
            f"world model: batch {progress.batch} of {progress.batches}, {progress.unexplained:.1%} of observations unexplained, "
            f"divergence {progress.divergence:.2f} nats"
        )

    world = train_world(work.agent, windows, settings, unfinished=work.unfinished, device=device, watch=watch)
    world.about = {
        "environment": work.environment,
        "recording": recording_digest(recording),
        "settings": asdict(settings),
        "device": device,
    }
    world.save(work.out)
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
