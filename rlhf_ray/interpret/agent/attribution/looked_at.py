"""What the attribution and search steps context on: episodes, world model, valid horizon, bases, masks at moments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.bases.basis import Basis
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.model import load_world
from rlhf_ray.interpret.agent.world_model.world import World

OBJECT = 0.12
"""Kinds of objects cover at most this share of the frames, on average. The rest is scenery; what moves is the agent."""
PREFERRED = ("ica", "pca", "probe")
"""Kinds of bases whose components are asked about: the first that is there."""


def world_of(context: AgentContext) -> World | None:
    """Load the world model; None if that step made none."""
    folder = context.folders.get("world_model")
    if folder is None or not folder.exists():
        return None
    return load_world(folder, agent=context.subject.agent)


def valid_horizon(context: AgentContext) -> int | None:
    """Return the valid horizon that the quality step found; None if it has not run."""
    folder = context.folders.get("quality")
    for file in sorted(folder.glob("*.json")) if folder is not None and folder.exists() else ():
        about = json.loads(file.read_text())
        if isinstance(about, dict) and about.get("valid_horizon") is not None:
            return int(about["valid_horizon"])
    return None


def basis_of(context: AgentContext) -> Basis | None:
    """Load a basis of the agent's memory whose components are worth asking about; None if there is none."""
    folder = context.folders.get("bases")
    files: Sequence[Path] = sorted(folder.glob("*.npz")) if folder is not None and folder.exists() else ()
    loaded = []
    for file in files:
        try:
            loaded.append(bases.load(file))
        except SettingError:
            continue
    fitting = [
        basis for basis in loaded if len(basis.center) == context.subject.agent.memory_size and basis.kind in PREFERRED
    ]
    return min(fitting, key=lambda basis: PREFERRED.index(basis.kind), default=None)


def states_of(episodes: Episodes, moments: WorldMoments) -> list[bytes]:
    """Return the environment's states at moments; empty if the recording has none."""
    if not len(episodes.env_states):
        return []
    return [bytes(episodes.env_states[int(i)][int(t)]) for i, t in zip(moments.rows, moments.steps, strict=True)]


def masks_at(batch: EnvBatch, states: Sequence[bytes]) -> dict[str, BoolArray]:
    """Return the masks of all kinds of things at some states, ``[n, height, width]`` by name; empty if unknown."""
    found: dict[str, list[BoolArray]] = {}
    for start in range(0, len(states), batch.n):
        part = list(states[start : start + batch.n])
        batch.restore(part + [part[0]] * (batch.n - len(part)))
        for name, mask in batch.masks().items():
            found.setdefault(name, []).append(mask[: len(part)])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def objects_of(masks: Mapping[str, BoolArray]) -> tuple[dict[str, BoolArray], BoolArray | None]:
    """Tell objects from scenery: return the objects' masks, and where the largest kind of scenery is."""
    objects = {n: of for n, of in masks.items() if 0 < of.mean() <= OBJECT and n != "agent"}
    scenery = {n: of for n, of in masks.items() if n not in objects and n != "agent"}
    return objects, max(scenery.values(), key=lambda of: float(of.mean()), default=None)
