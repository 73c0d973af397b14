"""Distinct levels: seeds whose levels have the same content count once, because they say the same twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.envs.batch import EnvBatch

COPIES = 32
"""Levels that are played at a time: their frames are held."""
COMPARED = 200
"""Steps that are compared: longer episodes of images would not fit the memory."""
ACTING = (0.0, 1.0)
"""Shares of random actions. The agent alone may stand still and see nothing; random actions alone may end every episode early."""
FEW = 30
"""Distinct levels below which a report warns: a percentile bootstrap's 95 % interval of fewer covers clearly less than 95 %."""


def contents(agent: Agent, make_batch: Callable[[int], EnvBatch], levels: Sequence[int] | IntArray) -> list[bytes]:
    """Return a digest of what each level shows: the same for levels with the same frames and rewards under the same actions.

    The actions are the agent's own, and the same random ones in each level.

    Args:
        agent: acts.
        make_batch: makes copies of its environment.
        levels: their seeds.
    """
    digests = [hashlib.sha256() for _ in levels]
    batch = make_batch(min(COPIES, max(len(levels), 1)))
    try:
        for first in range(0, len(levels), batch.n):
            some = np.asarray(levels)[first : first + batch.n]
            same = np.zeros(len(some), np.int64)  # the number that seeds each episode's random actions
            for epsilon in ACTING:
                played = play(agent, batch, some, epsilon=epsilon, max_steps=COMPARED, indices=same)
                for row, length in enumerate(played.lengths):
                    digests[first + row].update(np.ascontiguousarray(played.observations[row, : length + 1]).tobytes())
                    digests[first + row].update(played.rewards[row, :length].astype(np.float64).tobytes())
    finally:
        batch.close()
    return [digest.digest() for digest in digests]
