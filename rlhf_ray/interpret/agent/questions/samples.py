"""Samples: short rollouts with the gradients of some quantities through time, for strips and the panel."""

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
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions.quantities import Quantity
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.world_model.world import World

COPIES = 4
"""Noisy copies of each sample."""
ABOUT, ARRAYS = "samples.json", "samples.npz"
HALF = 60000.0
"""Gradients are clipped to what float16 holds."""


@dataclass(frozen=True)
class GradientSamples:
    """``n`` rollouts of ``T`` steps; the quantities are those of the last step.

    Attributes:
        rows, steps: where they start: episodes, and steps in them, ``[n]``.
        observations: what the agent saw, ``[n, T, …]``: uint8 for images, else float32.
        saliency: gradients of each quantity by the frames, ``[n, quantities, T, height, width]`` (channels added) or
            ``[n, quantities, T, features]``; float16, as those below.
        memory_gradients: by the agent's memory before each step, ``[n, quantities, T, memory_size]``.
        quantities: their names.
        simulated: whether a world model made the frames.
        horizon: the world model's valid horizon: steps after it are not to be trusted; None if not known.
    """

    rows: IntArray
    steps: IntArray
    observations: Array
    saliency: FloatArray
    memory_gradients: FloatArray
    quantities: tuple[str, ...]
    simulated: bool
    horizon: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def save(self, folder: Path) -> None:
        """Write ``samples.npz`` and ``samples.json`` to ``folder``."""
        np.savez_compressed(folder / ARRAYS, **self.arrays)  # type: ignore[arg-type]
        about = {name: getattr(self, name) for name in ("quantities", "simulated", "horizon")}
        write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> GradientSamples:
        """Read what `save` wrote.

        Raises:
            SettingError: there are no samples, or they are damaged.
        """
        try:
            about = json.loads((Path(folder) / ABOUT).read_text())
            with np.load(Path(folder) / ARRAYS, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            named = {name: about[name] for name in ("simulated", "horizon")}
            return cls(**arrays, **named, quantities=tuple(about["quantities"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingError(
                f"{folder} holds no attribution samples ({error}); run the attribution step again."
            ) from error


def join(parts: Sequence[GradientSamples]) -> GradientSamples:
    """Put samples behind each other."""
    joined: dict[str, Any] = {name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    return replace(parts[0], **joined)


def sample_gradients(
    moments: WorldMoments,
    *,
    agent: Agent,
    world: World | None,
    quantities: Sequence[Quantity],
    scales: Mapping[str, Tensor],
    steps: int,
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
        horizon: the world model's valid horizon.
    """
    simulated = world is not None
    by_quantity: dict[str, list[FloatArray]] = {"saliency": [], "memory_gradients": []}
    for quantity in quantities:
        sources = ("world", "memory") if simulated else ("frame", "memory")
        question = AgentQuestion(agent, quantity, steps, world, sources=sources)  # type: ignore[arg-type]
        slopes = through_time(question, moments, scales, samples=COPIES, seed=int(moments.steps[0]))
        frames = slopes["observations"]
        maps = frames.sum(-1) if frames.ndim == 5 else frames.reshape(*frames.shape[:2], -1)
        by_quantity["saliency"].append(maps)
        by_quantity["memory_gradients"].append(slopes["memory"])
    observations = slopes["seen"]
    if agent.observation_space.dtype == np.uint8:
        observations = np.clip(np.rint(observations), 0, 255).astype(np.uint8)
    return GradientSamples(
        moments.rows,
        moments.steps,
        observations,
        **{name: np.clip(np.stack(parts, 1), -HALF, HALF).astype(np.float16) for name, parts in by_quantity.items()},
        quantities=tuple(quantity.name for quantity in quantities),
        simulated=simulated,
        horizon=horizon if simulated else None,
    )


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
        the agent's memory before it and the world's. ``seen``: the frames themselves, without noise.
    """
    inputs = question.inputs(moments)
    generator = torch.Generator().manual_seed(seed)
    total: dict[str, Tensor] = {}
    upto = slice(question.steps + 1)
    for copy in range(samples):
        size = noise if copy else 0.0
        moved = {
            name: (actual + size * scales[name] * torch.randn(actual.shape, generator=generator)).requires_grad_()
            for name, actual in inputs.items()
        }
        simulation = question.rollout(moments, moved)
        slopes = simulation.gradients(question.read(simulation))
        for name in ("observations", "memory", "states"):
            part = getattr(slopes, name)[:, upto].detach() / samples
            total[name] = total[name] + part if name in total else part
        if not copy:
            seen = simulation.observations[:, upto].detach()
    return {name: slope.numpy() for name, slope in total.items()} | {"seen": seen.numpy()}
