"""Quantities: what is attributed. Each reads one number per row off a simulation, at its step ``k``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.world_model.simulate import Simulation
from rlhf_ray.interpret.directions import Directions

Read = Callable[[Agent, Simulation, int], Tensor]


@dataclass(frozen=True)
class Quantity:
    """A number that an agent or its world computes.

    Attributes:
        name: in file names and tables.
        title: for people, with its unit.
        read: returns it ``[n]`` at step ``k`` of a simulation.
        ahead: steps after ``k`` that it reads.
        choice: of a quantity that is about what the agent chooses: the same, given first the simulation without a change, whose
            choice stays; None: it chooses nothing.
    """

    name: str
    title: str
    read: Read
    ahead: int = 0
    choice: Callable[[Simulation, Simulation, int], Tensor] | None = None


def value() -> Quantity:
    """Return the critic's value."""
    return Quantity("value", "value", lambda agent, simulation, k: simulation.values[:, k])


def advantage(gamma: float = 0.99) -> Quantity:
    """Return the one-step advantage ``r + gamma V' - V`` of the action taken.

    Reward and end are the world model's, or the recording's.
    """

    def read(_agent: Agent, simulation: Simulation, k: int) -> Tensor:
        goes_on = 1.0 - torch.sigmoid(simulation.ends[:, k])
        after = gamma * goes_on * simulation.values[:, k + 1]
        return simulation.rewards[:, k] + after - simulation.values[:, k]

    return Quantity("advantage", f"advantage of the action taken (1 step, discount {gamma:g})", read, 1)


def chosen_action(space: gym.Space[Any]) -> Quantity:
    """Return the log-odds of each row's own most likely action against the rest. Needs Discrete actions.

    Where something is changed, the action is still that without the change: an agent may be as sure of the opposite.

    Raises:
        SettingError: the actions are not Discrete, or there is only one.
    """
    if not isinstance(space, gym.spaces.Discrete) or int(space.n) < 2:
        raise SettingError(f"{space} has no log-odds; use the mean of a dimension.")

    def odds(plain: Simulation, simulation: Simulation, k: int) -> Tensor:
        logits, first = simulation.logits[:, k], plain.logits[:, k]
        best = torch.nn.functional.one_hot(first.argmax(1), first.shape[1]).bool()
        return logits[best] - logits.masked_fill(best, -torch.inf).logsumexp(1)

    def read(_agent: Agent, simulation: Simulation, k: int) -> Tensor:
        return odds(simulation, simulation, k)

    return Quantity("action", "log-odds of the most likely action", read, choice=odds)


def action_mean(space: gym.Space[Any], dimension: int) -> Quantity:
    """Return the mean of one dimension of a Box action, as the policy has it.

    Raises:
        SettingError: the space is not Box, or has no such dimension.
    """
    size = int(torch.Size(space.shape).numel()) if isinstance(space, gym.spaces.Box) else 0
    if not 0 <= dimension < size:
        raise SettingError(f"{space} has no dimension {dimension} with a mean; use one of 0 to {size - 1}.")

    def read(_agent: Agent, simulation: Simulation, k: int) -> Tensor:
        return simulation.logits[:, k, dimension]

    return Quantity(f"mean_{dimension}", f"mean of action dimension {dimension}", read)


def loading(basis: Directions, component: int, site: str = MEMORY) -> Quantity:
    """Return the score of a component of a basis in the agent's memory after step ``k``, or in a layer's output.

    Args:
        basis: the basis, fitted at ``site``.
        component: which.
        site: `MEMORY`, or a layer's name.
    """
    center = torch.as_tensor(basis.center, dtype=torch.float32)
    row = torch.as_tensor(basis.filters[component], dtype=torch.float32)

    def read(agent: Agent, simulation: Simulation, k: int) -> Tensor:
        keep = () if site == MEMORY else (site,)
        step = agent.step(simulation.observations[:, k], simulation.memory[:, k], keep=keep)
        values = step.memory if site == MEMORY else step.activations[site]
        return (values.flatten(1) - center) @ row

    return Quantity(f"loading_{component}", f"score of {basis.names[component]}", read)
