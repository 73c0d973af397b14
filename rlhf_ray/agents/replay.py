"""What an agent thinks along given episodes: its logits, values, memory and activations on observations it did not choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError

BATCH = 64
"""Episodes at a time."""


def site_of(agent: Agent) -> str:
    """Return where to look into an agent: its memory, or without one the last layer that both actor and critic read.

    Raises:
        SettingError: it has neither.
    """
    if agent.memory_size:
        return MEMORY
    before = [name for name in agent.layers if not name.startswith(("actor", "critic"))]
    hidden = before or [name for name in agent.layers if name.startswith("actor")][:-1]
    if not hidden:
        raise SettingError(
            f"The agent {agent.name!r} has neither memory nor hidden layers: there is nothing to look into."
        )
    return hidden[-1]


def replay(agent: Agent, episodes: Episodes, keep: Sequence[str] = ()) -> Episodes:
    """Run ``agent`` along the observations of ``episodes``.

    Args:
        agent: any agent with the same observations, for example another one or an untrained one.
        episodes: whole episodes: the memory starts as in a new one.
        keep: layers whose outputs to return.

    Returns:
        The episodes with the agent's logits, values, memory and activations; all else, the actions too, stays as it was.
    """
    n, steps = episodes.actions.shape[:2]
    memory = np.zeros((n, steps + 1, agent.memory_size), np.float32)
    values = np.zeros((n, steps), np.float32)
    logits: FloatArray | None = None
    kept: dict[str, FloatArray] = {}
    with torch.no_grad():
        for first in range(0, n, BATCH):
            rows = slice(first, first + BATCH)
            state = agent.initial_memory(len(episodes.lengths[rows]))
            memory[rows, 0] = state.numpy()
            for t in range(steps):
                seen = torch.as_tensor(episodes.observations[rows, t])
                step = agent.step(seen, state, keep=keep)
                goes_on = torch.as_tensor(t < episodes.lengths[rows])
                state = torch.where(goes_on[:, None], step.memory, state)
                memory[rows, t + 1] = state.numpy()
                values[rows, t] = step.value.numpy()
                logits = np.zeros((n, steps, step.logits.shape[1]), np.float32) if logits is None else logits
                logits[rows, t] = step.logits.numpy()
                for name, activation in step.activations.items():
                    if name not in kept:
                        kept[name] = np.zeros((n, steps, *activation.shape[1:]), np.float32)
                    kept[name][rows, t] = activation.numpy()
    assert logits is not None, "there are no steps"
    return dataclasses.replace(episodes, logits=logits, values=values, memory=memory, activations=kept)


def values_at(agent: Agent, episodes: Episodes, site: str | None = None) -> FloatArray:
    """Return what a site holds at each step, after the observation was seen: ``[n, T, size]`` float32.

    Args:
        agent: the agent. Layers that ``episodes`` does not hold are computed along its observations.
        episodes: the episodes.
        site: `rlhf_ray.agents.agent.MEMORY` or a layer; by default `site_of`. Positions of images are averaged.
    """
    site = site_of(agent) if site is None else site
    if site == MEMORY:
        return episodes.memory[:, 1:]
    values = (
        episodes.activations[site]
        if site in episodes.activations
        else replay(agent, episodes, [site]).activations[site]
    )
    flat: FloatArray = values.reshape(*values.shape[:3], -1).mean(-1).astype(np.float32)
    return flat
