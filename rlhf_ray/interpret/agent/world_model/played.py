"""Play inside a world model, as `play` and `go_on` do in the environment, and the model's states at recorded moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import check, edits_for
from rlhf_ray.agents.moments import Moments, WorldMoments, moments_of
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.agent.world_model.simulate import Simulation, simulate
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.policies.env_actions import to_env_actions

END = "end"
"""Cause of a simulated episode that ended."""
BATCH = 256
"""Moments at a time."""


def play_in_world(
    world: World, agent: Agent, moments: WorldMoments, steps: int, interventions: Sequence[Intervention] = ()
) -> Episodes:
    """Let the agent act greedily inside a world model from moments on, with the same interventions as in `play`."""
    check(interventions, agent)
    edits = edits_for(interventions, start=moments.steps, rows=moments.rows)
    with torch.no_grad():
        simulation = simulate(world, agent, moments.observations, moments.actions, moments.memory, steps, edits=edits)
    return episodes_of(simulation, agent.action_space, moments.rows)


def episodes_of(simulation: Simulation, space: gym.Space[Any], levels: IntArray) -> Episodes:
    """Return a simulation as episodes: rewards and ends are those that the world predicts. ``levels`` group them in intervals."""
    n, steps = simulation.rewards.shape
    taken = simulation.actions.detach().cpu().numpy()
    if isinstance(space, gym.spaces.Discrete):
        actions = taken.argmax(-1)
    else:
        actions = to_env_actions(taken.reshape(n, steps, *(space.shape or ())), space)
    ended = simulation.ends.detach().cpu().numpy() > 0.0
    terminated = np.asarray(ended.any(1))
    return Episodes(
        simulation.observations.detach().cpu().numpy(),
        actions,
        simulation.logits[:, :-1].detach().cpu().numpy(),
        simulation.values[:, :-1].detach().cpu().numpy(),
        simulation.memory.detach().cpu().numpy(),
        simulation.rewards.detach().cpu().numpy().astype(np.float64),
        np.where(terminated, ended.argmax(1) + 1, steps),
        terminated,
        np.zeros(n, bool),
        [END if each else "" for each in terminated.tolist()],
        np.asarray(levels, np.int64),
    )


def world_states(world: World, agent: Agent, episodes: Episodes, moments: Moments) -> FloatArray:
    """Return the world model's states ``[n, size]`` at recorded moments, from the observations up to each."""
    parts = [np.zeros((0, world.size))]
    with torch.no_grad():
        for first in range(0, len(moments), BATCH):
            some = moments[first : first + BATCH]
            context = moments_of(agent, episodes, some.rows, some.steps, context=world.context)
            parts.append(world.begin(context.observations, context.actions).double().numpy())
    return np.concatenate(parts)
