"""States and masks at moments, and which masks are objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import BoolArray
from rlhf_ray.envs.batch import EnvBatch

OBJECT = 0.12
"""Kinds of objects cover at most this share of the frames, on average. The rest is scenery; what moves is the agent."""


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
