"""The world model's states at recorded moments."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments, moments_of
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.world_model.world import World

BATCH = 256
"""Moments at a time."""


def world_states(world: World, agent: Agent, episodes: Episodes, moments: Moments) -> FloatArray:
    """Return the world model's states ``[n, size]`` at recorded moments, from the observations up to each."""
    parts = [np.zeros((0, world.size))]
    with torch.no_grad():
        for first in range(0, len(moments), BATCH):
            some = moments[first : first + BATCH]
            context = moments_of(agent, episodes, some.rows, some.steps, context=world.context)
            parts.append(world.begin(context.observations, context.actions).double().numpy())
    return np.concatenate(parts)
