"""Simulation: an agent inside a world model, step by step, with gradients through the memories of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent, Edit
from rlhf_ray.agents.episodes import Episodes, StepBatch, moments_of
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies import actions as policy_actions
from rlhf_ray.policies.actions import policy_bounds


@dataclass(frozen=True)
class Simulation:
    """What happened in a simulation of ``n`` episodes. Row 0 in time is the context's last observation.

    All tensors are differentiable with respect to what came before. The later steps were not computed from these stacked tensors,
    so gradients with respect to steps come from `gradients`.
    """

    observations: Tensor  # as the world reconstructs and predicts them, ``[n, steps + 1, …]``, float
    states: Tensor  # the world's, ``[n, steps + 1, size]``
    memory: Tensor  # the agent's before each step, ``[n, steps + 1, memory_size]``
    logits: Tensor  # ``[n, steps + 1, outputs]``
    values: Tensor  # ``[n, steps + 1]``
    actions: Tensor  # that led from each step to the next, ``[n, steps, actions]``
    rewards: Tensor  # that the world predicts for each of them, ``[n, steps]``
    ends: Tensor  # logits that the episode terminated with each of them, ``[n, steps]``
    # ``observations``, ``states`` and ``memory`` of each step, as the next ones were computed from them
    nodes: Mapping[str, Sequence[Tensor]]

    def gradients(self, target: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the sum of ``target``, computed from this simulation, with respect to each step of `nodes`.

        They have the shapes of ``observations``, ``states`` and ``memory``, and are 0 where there is none. Rows of the batch don't
        mix, so a target ``[n]`` gives each row its own gradient. Needs gradients enabled in `simulate`.
        """
        flat = [node for nodes in self.nodes.values() for node in nodes]
        found = torch.autograd.grad(target.sum(), flat, retain_graph=True, allow_unused=True)
        filled = [torch.zeros_like(node) if part is None else part for node, part in zip(flat, found, strict=True)]
        steps = len(filled) // len(self.nodes)
        return {name: torch.stack(filled[i * steps : (i + 1) * steps], 1) for i, name in enumerate(self.nodes)}


def simulate(
    world: World,
    agent: Agent,
    observations: Tensor,
    actions: Tensor,
    memory: Tensor,
    steps: int,
    *,
    given: Tensor | None = None,
    edits: Callable[[int], Mapping[str, Edit]] | None = None,
    through_actions: bool = True,
    start: Tensor | None = None,
) -> Simulation:
    """Simulate ``steps`` steps of an agent inside a world model.

    At each step the agent sees the world's own picture of the state, the reconstruction of the context's last observation first.
    Each row of the batch is computed on its own. A Discrete action is the most likely one, and passes on the gradient of the
    log-probabilities (straight through); Box actions are the mean, and pass on their own.

    Args:
        world: the world model.
        agent: any agent with the world's spaces.
        observations: the context, ``[n, world.context, …]``: see `World.begin`.
        actions: the context's, ``[n, world.context - 1, actions]``.
        memory: the agent's before the context's last observation, ``[n, memory_size]``.
        steps: number of steps; 0 only looks at the context's last observation.
        given: actions to take instead of the agent's (open loop), ``[n, steps, actions]``, one-hot or policy actions.
        edits: changes inside the agent at a step: see `Agent.step`.
        through_actions: whether gradients pass through the agent's actions into the world. The values stay the same.
        start: a state to start from, ``[n, size]``, instead of the context's.

    Raises:
        SettingError: too few given actions.
    """
    if given is not None and given.shape[1] < steps:
        raise SettingError(
            f"{steps} steps need {steps} given actions, not {given.shape[1]}; give more, or simulate fewer steps."
        )
    discrete = isinstance(agent.action_space, gym.spaces.Discrete)
    state = _node(world.begin(observations, actions) if start is None else start)
    memory = _node(memory)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("observations", "states", "memory", *_PREDICTED)}
    for step in range(steps + 1):
        seen = _node(world.observe(state))
        rows["observations"].append(seen)
        rows["states"].append(state)
        rows["memory"].append(memory)
        taken = agent.step(seen, memory, edits=edits(step) if edits is not None else {})
        rows["logits"].append(taken.logits)
        rows["values"].append(taken.value)
        if step == steps:
            break
        action = given[:, step] if given is not None else _action(taken.logits, agent.action_space)
        rows["actions"].append(action)
        state = _node(world.next(state, action if through_actions else action.detach()))
        # A tensor of its own, so that gradients with respect to it are not also those through the action just taken.
        memory = _node(taken.memory.clone())
        rows["rewards"].append(world.reward(state))
        rows["ends"].append(world.end(state))
    n = len(memory)
    empty = {
        "actions": memory.new_zeros(n, 0, taken.logits.shape[1] // (1 if discrete else 2)),
        "rewards": memory.new_zeros(n, 0),
        "ends": memory.new_zeros(n, 0),
    }
    stacked = {name: torch.stack(parts, 1) if parts else empty[name] for name, parts in rows.items()}
    return Simulation(**stacked, nodes={name: rows[name] for name in ("observations", "states", "memory")})


_PREDICTED = ("logits", "values", "actions", "rewards", "ends")


def _node(values: Tensor) -> Tensor:
    """Return values that gradients can be asked for, where gradients are enabled."""
    return values.detach().requires_grad_() if torch.is_grad_enabled() and not values.requires_grad else values


def _action(logits: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the agent's action as the world reads it, ``[n, actions]``."""
    if not isinstance(space, gym.spaces.Discrete):
        mean = policy_actions.best(logits, space)
        if not isinstance(space, gym.spaces.Box):
            return mean
        low, high = (torch.as_tensor(end.flatten(), device=mean.device) for end in policy_bounds(space))
        return mean.clamp(low, high)  # the environment clips
    soft = logits.log_softmax(-1)
    hard = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())  # exactly one-hot


class World(Protocol):
    """A learned environment for ``n`` episodes at once. Its state is one vector ``[n, size]`` per episode: the world's memory."""

    size: int  # length of the state vector
    context: int  # number of observations that it starts from
    agent: str  # digest of the agent whose recording it was trained on

    @property
    def digest(self) -> str:
        """Hash of its weights and settings, 16 hex digits."""
        ...

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the state ``[n, size]`` at the last of the observations ``[n, context, …]``, in the environment's units.

        Actions between them are ``[n, context - 1, actions]``: one-hot for Discrete, policy actions for Box.
        """
        ...

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the state ``[n, size]`` after actions ``[n, actions]`` (weights of Discrete actions, or policy actions of Box)."""
        ...

    def observe(self, state: Tensor) -> Tensor:
        """Return the observation ``[n, …]`` of a state, float, in the environment's units (images 0..255)."""
        ...

    def reward(self, state: Tensor) -> Tensor:
        """Return the predicted reward ``[n]`` of the step that led to the state."""
        ...

    def end(self, state: Tensor) -> Tensor:
        """Return the logit ``[n]`` that the episode terminated with the step that led to the state."""
        ...


STATES = 256
"""Steps at a time."""


def world_states(world: World, agent: Agent, episodes: Episodes, moments: StepBatch) -> FloatArray:
    """Return the world model's states ``[n, size]`` at recorded moments, from the observations up to each."""
    parts = [np.zeros((0, world.size))]
    with torch.no_grad():
        for first in range(0, len(moments), STATES):
            some = moments[first : first + STATES]
            context = moments_of(agent, episodes, some.rows, some.steps, context=world.context)
            parts.append(world.begin(context.observations, context.actions).double().numpy())
    return np.concatenate(parts)
