"""Samples: short rollouts with the gradients of some quantities, and the shares of their paths, for the panel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import Moments, WorldMoments
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions.paths import WAYS, ways
from rlhf_ray.interpret.agent.questions.quantities import Quantity
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.world_model.simulate import Estimator
from rlhf_ray.interpret.agent.world_model.world import World

COPIES = 4
"""Noisy copies of each sample."""
ABOUT, ARRAYS = "samples.json", "samples.npz"
SAVED = {"rows": "episodes", "steps": "times"}
"""Names in the file of fields that it calls otherwise."""
HALF = 60000.0
"""Gradients are clipped to what float16 holds."""


@dataclass(frozen=True)
class GradientSamples(Moments):
    """``n`` rollouts of ``T`` steps; the quantities are those of the last step.

    Attributes:
        observations: what the agent saw, ``[n, T, …]``: uint8 for images, else float32.
        memory: the agent's before each step, ``[n, T, memory_size]`` float32.
        values: ``[n, T]`` float32.
        logits: ``[n, T, outputs]`` float32.
        saliency: gradients of each quantity by the frames, float16: ``[n, T, height, width]`` (channels added) or
            ``[n, T, features]``.
        memory_gradients: by the agent's memory before each step, ``[n, T, memory_size]`` float16.
        paths: for each quantity, the shares of the ways that the world's state at the start takes to the quantity at each step,
            ``[n, T, ways]`` float16, in the order of `WAYS`; NaN without a world model.
        simulated: whether a world model made the frames.
        estimator: how actions passed gradients.
        horizon: the world model's valid horizon: steps after it are not to be trusted; None if not known.
    """

    observations: Array
    memory: FloatArray
    values: FloatArray
    logits: FloatArray
    saliency: Mapping[str, FloatArray]
    memory_gradients: Mapping[str, FloatArray]
    paths: Mapping[str, FloatArray]
    simulated: bool
    estimator: str
    horizon: int | None = None

    def save(self, folder: Path) -> None:
        """Write ``samples.npz`` and ``samples.json`` to ``folder``."""
        arrays: dict[str, Array] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                arrays[SAVED.get(each.name, each.name)] = value
            elif isinstance(value, Mapping):
                arrays |= {f"{each.name}/{name}": of for name, of in value.items()}
        np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
        about = {"simulated": self.simulated, "estimator": self.estimator, "horizon": self.horizon, "ways": dict(WAYS)}
        write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> GradientSamples:
        """Read what `save` wrote.

        Raises:
            SettingError: there are no samples, or they are damaged.
        """
        path = Path(folder)
        try:
            about = json.loads((path / ABOUT).read_text())
            with np.load(path / ARRAYS, allow_pickle=False) as file:
                arrays = {
                    name: file[SAVED.get(name, name)] for name in [*SAVED, *set(file.files) - set(SAVED.values())]
                }
            grouped: dict[str, Any] = {"saliency": {}, "memory_gradients": {}, "paths": {}}
            for name in [name for name in arrays if "/" in name]:
                kind, _, quantity = name.partition("/")
                grouped[kind][quantity] = arrays.pop(name)
            return cls(**arrays, **grouped, **{name: about[name] for name in ("simulated", "estimator", "horizon")})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingError(
                f"{folder} holds no attribution samples ({error}); run the attribution step again."
            ) from error


def join(parts: Sequence[GradientSamples]) -> GradientSamples:
    """Put samples behind each other."""
    first = parts[0]
    joined: dict[str, object] = {}
    for each in fields(first):
        value = getattr(first, each.name)
        if isinstance(value, np.ndarray):
            joined[each.name] = np.concatenate([getattr(part, each.name) for part in parts])
        elif isinstance(value, Mapping):
            joined[each.name] = {
                name: np.concatenate([getattr(part, each.name)[name] for part in parts]) for name in value
            }
    return replace(first, **joined)  # type: ignore[arg-type]


def sample_gradients(
    moments: WorldMoments,
    *,
    agent: Agent,
    world: World | None,
    quantities: Sequence[Quantity],
    scales: Mapping[str, Tensor],
    steps: int,
    estimator: Estimator = "straight_through",
    with_paths: Sequence[str] = ("value", "action"),
    horizon: int | None = None,
) -> GradientSamples:
    """Compute the samples of some moments. Independent of all others: the noise of a sample is that of its chunk.

    Args:
        moments: where they start.
        agent: the agent.
        world: the world model; None: the recorded frames.
        quantities: what is asked at the last step.
        scales: see `through_time`.
        steps: after the start; samples have ``steps + 1`` steps.
        estimator: see `simulate`.
        with_paths: names of the quantities whose paths are told apart.
        horizon: the world model's valid horizon.
    """
    sources = ("frame", "memory") if world is None else ("world", "memory")
    saliency, gradients, paths = {}, {}, {}
    seen: dict[str, Array] = {}
    for quantity in quantities:
        question = AgentQuestion(agent, quantity, steps, world, estimator, sources=sources)  # type: ignore[arg-type]
        found = through_time(question, moments, scales, samples=COPIES, seed=int(moments.steps[0]))
        frames = found["observations"]
        saliency[quantity.name] = _half(frames.sum(-1) if frames.ndim == 5 else frames.reshape(*frames.shape[:2], -1))
        gradients[quantity.name] = _half(found["memory"])
        paths[quantity.name] = _paths(question, moments, quantity.name in with_paths)
        seen = {name: of[:, : steps + 1] for name, of in found.items() if name.endswith("_seen")}
    observations = seen["observations_seen"]
    if agent.observation_space.dtype == np.uint8:
        observations = np.clip(np.rint(observations), 0, 255).astype(np.uint8)
    return GradientSamples(
        moments.rows, moments.steps, observations, seen["memory_seen"].astype(np.float32), seen["values_seen"],
        seen["logits_seen"], saliency, gradients, paths, world is not None,
        "recording" if world is None else estimator, horizon if world is not None else None,
    )  # fmt: skip


def through_time(
    question: AgentQuestion,
    moments: WorldMoments,
    scales: Mapping[str, Tensor],
    *,
    samples: int = 1,
    noise: float = AgentQuestion.noise,
    seed: int = 0,
) -> dict[str, Array]:
    """Return the gradients of a quantity ``k`` steps on with respect to every step up to it, averaged over noisy copies.

    The first copy has no noise. Gradients are not multiplied by scales.

    Args:
        question: with ``steps = k``.
        moments: where.
        scales: of the sources, which give the noise its size.
        samples: copies of the inputs.
        noise: its standard deviation, in these scales.
        seed: of the noise.

    Returns:
        ``observations`` ``[n, k + 1, …]``: gradients to the frame that the agent sees at each step; ``memory`` and ``states``: to
        the agent's memory before it and the world's. ``observations_seen``, ``memory_seen``, ``values_seen`` and ``logits_seen``
        are the steps' own, without noise.
    """
    inputs = question.inputs(moments)
    generator = torch.Generator().manual_seed(seed)
    total: dict[str, Tensor] = {}
    seen: dict[str, Array] = {}
    for copy in range(samples):
        moved = {
            name: of + (0.0 if copy == 0 else noise) * scales[name] * torch.randn(of.shape, generator=generator)
            for name, of in inputs.items()
        }
        simulation = question.rollout(moments, {name: of.requires_grad_() for name, of in moved.items()})
        found = simulation.gradients(question.read(simulation))
        for name in ("observations", "memory", "states"):
            part = getattr(found, name)[:, : question.steps + 1].detach() / samples
            total[name] = total[name] + part if name in total else part
        if copy == 0:
            names = ("observations", "memory", "values", "logits")
            seen = {f"{name}_seen": getattr(simulation, name).detach().numpy() for name in names}
    return {name: of.numpy() for name, of in total.items()} | seen


def _paths(question: AgentQuestion, moments: WorldMoments, wanted: bool) -> FloatArray:
    shares = np.full((len(moments), question.steps + 1, len(WAYS)), np.nan, np.float16)
    if question.world is not None and wanted:
        for step in range(question.steps + 1):
            found = ways(replace(question, steps=step), moments).shares
            shares[:, step] = np.stack([found[name] for name in WAYS], 1)
    return shares


def _half(values: Array) -> FloatArray:
    half: FloatArray = np.clip(values, -HALF, HALF).astype(np.float16)
    return half
