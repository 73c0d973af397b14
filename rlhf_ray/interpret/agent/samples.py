"""Samples: what an agent has in mind at single steps, as rows, with the episode, the step and the level of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments
from rlhf_ray.agents.replay import values_at
from rlhf_ray.data.arrays import FloatArray, IntArray

LARGEST_SIDE = 32
"""Pixels of a frame's side as probes see it; larger frames are averaged down."""


@dataclass(frozen=True)
class Samples(Moments):
    """What an agent has in mind at moments, after the observation was seen.

    Attributes:
        values: ``[n, size]``.
        levels: ``[n]``: what is fitted on some levels is tested on others.
    """

    values: FloatArray
    levels: IntArray


def samples(agent: Agent, episodes: Episodes, most: int | None = None, seed: int = 0) -> Samples:
    """Return all steps of ``episodes``, or ``most`` of them drawn at random, in order.

    Args:
        agent: the agent whose episodes they are.
        episodes: the episodes.
        most: how many steps.
        seed: draws them.
    """
    rows, steps = np.nonzero(episodes.real)
    if most is not None and len(rows) > most:
        chosen = np.sort(np.random.default_rng([seed, 0x5A]).choice(len(rows), most, replace=False))
        rows, steps = rows[chosen], steps[chosen]
    values = values_at(agent, episodes)[rows, steps].astype(np.float64)
    return Samples(rows, steps, values.reshape(len(rows), -1), np.asarray(episodes.levels)[rows])


def frames(episodes: Episodes, like: Samples) -> FloatArray | None:
    """Return the one observation of each sample, ``[n, features]``; None if there are none. Large images are averaged."""
    if not episodes.observations[:1, :1].size:
        return None
    seen = like.cut(episodes.observations)
    if seen.ndim == 4 and max(seen.shape[1:3]) > LARGEST_SIDE:
        by = -(-max(seen.shape[1:3]) // LARGEST_SIDE)
        height, width = (side // by for side in seen.shape[1:3])
        cut = seen[:, : height * by, : width * by].astype(np.float32)
        seen = cut.reshape(len(seen), height, by, width, by, -1).mean((2, 4))
    flat: FloatArray = seen.reshape(len(seen), -1).astype(np.float64)
    return flat
