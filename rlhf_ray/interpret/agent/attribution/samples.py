"""Samples: short rollouts with the gradients of some quantities, and the shares of their paths, for the panel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import Moments, WorldMoments
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.attribution.methods import Reference, plane, through_time
from rlhf_ray.interpret.agent.attribution.paths import WAYS, ways
from rlhf_ray.interpret.agent.attribution.quantities import Quantity
from rlhf_ray.interpret.agent.attribution.question import Question
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
    reference: Reference,
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
        reference: of the same sources.
        steps: after the start; samples have ``steps + 1`` steps.
        estimator: see `simulate`.
        with_paths: names of the quantities whose paths are told apart.
        horizon: the world model's valid horizon.
    """
    sources = ("frame", "memory") if world is None else ("world", "memory")
    saliency, gradients, paths = {}, {}, {}
    seen: dict[str, Array] = {}
    for quantity in quantities:
        question = Question(agent, quantity, steps, world, estimator, sources=sources)  # type: ignore[arg-type]
        found = through_time(question, moments, reference, samples=COPIES, seed=int(moments.steps[0]))
        frames = found["observations"]
        saliency[quantity.name] = _half(plane(frames) if frames.ndim == 5 else frames.reshape(*frames.shape[:2], -1))
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


def _paths(question: Question, moments: WorldMoments, wanted: bool) -> FloatArray:
    shares = np.full((len(moments), question.steps + 1, len(WAYS)), np.nan, np.float16)
    if question.world is not None and wanted:
        for step in range(question.steps + 1):
            found = ways(replace(question, steps=step), moments).shares
            shares[:, step] = np.stack([found[name] for name in WAYS], 1)
    return shares


def _half(values: Array) -> FloatArray:
    half: FloatArray = np.clip(values, -HALF, HALF).astype(np.float16)
    return half
