"""Agents of your own: two plain functions, or anything that has the interface of `Agent`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.agents.agent import MEMORY, Agent, AgentStep, Edit, NetworkAgent
from rlhf_ray.agents.episodes import action_size
from rlhf_ray.data.errors import BrokenAgentError, SettingError
from rlhf_ray.data.identity import identify
from rlhf_ray.data.registry import Registry
from rlhf_ray.reward.unmoved import unmoved

Remember = Callable[[Tensor, Tensor], Tensor]
"""Observations ``[n, …]`` and memory ``[n, memory_size]`` to the new memory."""
Decide = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Observations and new memory to the inputs of the action distribution ``[n, outputs]`` and values ``[n]``."""


class FunctionAgent(Agent):
    """An `Agent` of two functions, for example one whose behaviour has a cause that you know.

    Args:
        decide: chooses actions and values from the observation and the new memory.
        observation_space, action_space: the environment's.
        remember: computes the new memory; None for an agent without memory.
        memory_size: length of the memory vector, which starts at 0.
        name: for people, and part of the agent's identity.
    """

    def __init__(
        self,
        decide: Decide,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        remember: Remember | None = None,
        memory_size: int = 0,
        name: str = "function",
    ):
        self._decide, self._remember = decide, remember
        self.observation_space, self.action_space = observation_space, action_space
        self.memory_size = memory_size
        self.name = name
        self.layers: Sequence[str] = ()
        self.digest = identify(name, decide, remember, memory_size, observation_space, action_space)[:16]

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        if unknown := sorted({*edits, *keep} - {MEMORY}):
            raise SettingError(f"The agent {self.name!r} is made of functions and has no layer {unknown[0]!r}.")
        seen = observations.float()
        after = memory
        if self._remember is not None:  # each function gets copies: it may change them in place
            after = self._remember(seen.clone(), memory.clone()) + _nothing(seen, memory)[:, None]
        if MEMORY in edits:
            after = edits[MEMORY](after)
        logits, value = self._decide(seen.clone(), after.clone())
        nothing = _nothing(seen, after)
        return AgentStep(logits + nothing[:, None], value + nothing, after)


class CarefulAgent:
    """An `Agent` around one of a user's own class, which may change its inputs in place or keep statistics: it works on copies."""

    def __init__(self, agent: Agent, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.agent = agent
        self.name, self.digest = agent.name, identify(agent)[:16]
        self.memory_size, self.layers = agent.memory_size, agent.layers
        self.observation_space, self.action_space = observation_space, action_space

    def initial_memory(self, n: int) -> Tensor:
        return self.agent.initial_memory(n).clone()

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        with unmoved(*(value for value in vars(self.agent).values() if isinstance(value, nn.Module))):
            return self.agent.step(observations.clone(), memory.clone(), edits=edits, keep=keep)

    def fresh(self, seed: int) -> Agent | None:
        return self.agent.fresh(seed)


def _nothing(*inputs: Tensor) -> Tensor:
    """Return zeros ``[n]`` that depend on ``inputs``: what a function ignores has the gradient 0, instead of none."""
    return torch.stack([value.flatten(1)[:, :0].sum(1) for value in inputs]).sum(0)


OWN: Registry[Any] = Registry("agent", Agent, {})


def own_agent(name: str, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Agent:
    """Import ``module:Name``, which the user typed: an `Agent`, or what makes one, and is offered the environment's spaces.

    Raises:
        SettingError: it can't be made, or does not act in this environment. One line.
        BrokenAgentError: it returns NaN.
    """
    part = OWN.find(name)
    if inspect.isclass(part) or inspect.isroutine(part):
        offered = {"observation_space": observation_space, "action_space": action_space}
        try:
            part = part(**{key: offered[key] for key in inspect.signature(part).parameters if key in offered})
        except Exception as error:
            raise SettingError(f"The agent {name} can't be made for this environment: {_first_line(error)}.") from error
    wanted = ("name", "digest", "memory_size", "layers", "initial_memory", "step", "fresh")
    if missing := [needed for needed in wanted if not hasattr(part, needed)]:
        raise SettingError(
            f"The agent {name} is {type(part).__name__} without {missing[0]!r}; it must be a FunctionAgent or "
            "NetworkAgent, or have the interface of rlhf_ray.agents.agent.Agent."
        )
    try:
        with torch.no_grad():
            step = part.step(torch.as_tensor(np.stack([observation_space.sample()])), part.initial_memory(1))
        discrete = isinstance(action_space, gym.spaces.Discrete)
        outputs = action_size(action_space) * (1 if discrete else 2)
        shapes = [tuple(tensor.shape) for tensor in (step.logits, step.value, step.memory)]
        if shapes != (wanted_shapes := [(1, outputs), (1,), (1, part.memory_size)]):
            raise ValueError(f"it returns logits, value and memory of shapes {shapes}, not {wanted_shapes}")
    except Exception as error:
        raise SettingError(f"The agent {name} does not act on {observation_space}: {_first_line(error)}.") from error
    if any(bool(tensor.isnan().any()) for tensor in (step.logits, step.value, step.memory)):
        raise BrokenAgentError(f"The agent {name} returns NaN; its weights may be broken.")
    if isinstance(part, FunctionAgent | NetworkAgent):
        return part
    return CarefulAgent(part, observation_space, action_space)


def _first_line(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return first if isinstance(error, ValueError) and first else f"{type(error).__name__}: {first}".removesuffix(": ")
