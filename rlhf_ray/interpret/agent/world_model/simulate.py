"""Simulation: an agent inside a world model, step by step, with gradients through the memories of both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent, Edit
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.policies import actions as policy_actions
from rlhf_ray.policies.env_actions import policy_bounds

Estimator = Literal["straight_through", "softmax", "gumbel"]
ESTIMATORS: tuple[Estimator, ...] = ("straight_through", "softmax", "gumbel")
"""How a Discrete action, which is one-hot for the world, passes gradients back to the agent's logits.

straight_through: the most likely action, with the gradient of the log-probabilities. softmax: the most likely action, with the
gradient of the probabilities. gumbel: an action drawn by Gumbel noise, with the gradient of the noisy logits' softmax. The choice
changes gradients by orders of magnitude, so it is written into everything made with them. Box actions are the mean whatever the
estimator: they are differentiable.
"""

Cut = Literal["memory", "world", "frame", "action"]
CUTS: tuple[Cut, ...] = ("memory", "world", "frame", "action")
"""Paths that can be cut, for gradients only. memory: the agent's memory from step to step. world: the world's state from step to
step. frame: observation into agent. action: action into world."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of a target with respect to each step of a simulation, in the shapes of `Simulation`; 0 where there is none."""

    observations: Tensor
    states: Tensor
    memory: Tensor


@dataclass(frozen=True)
class Simulation:
    """What happened in a simulation of ``n`` episodes. Row 0 in time is the context's last observation.

    All tensors are differentiable with respect to what came before. The later steps were not computed from these stacked tensors,
    so gradients with respect to steps come from `gradients`.

    Attributes:
        observations: as the world reconstructs and predicts them, ``[n, steps + 1, …]``, float.
        states: the world's, ``[n, steps + 1, size]``.
        memory: the agent's before each step, ``[n, steps + 1, memory_size]``.
        logits: ``[n, steps + 1, outputs]``.
        values: ``[n, steps + 1]``.
        actions: that led from each step to the next, ``[n, steps, actions]``.
        rewards: that the world predicts for each of them, ``[n, steps]``.
        ends: logits that the episode terminated with each of them, ``[n, steps]``.
        estimator: how actions passed gradients: one of `ESTIMATORS`, ``mean`` for Box actions, ``none`` if the actions were given.
        cut: paths that were cut.
        world, agent: digests of both.
        nodes: ``observations``, ``states`` and ``memory`` of each step, as the next ones were computed from them.
    """

    observations: Tensor
    states: Tensor
    memory: Tensor
    logits: Tensor
    values: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    estimator: str
    cut: frozenset[Cut]
    world: str
    agent: str
    nodes: Mapping[str, Sequence[Tensor]]

    def gradients(self, target: Tensor) -> Gradients:
        """Return the gradients of the sum of ``target``, computed from this simulation, with respect to each of its steps.

        Rows of the batch don't mix, so a target ``[n]`` gives each row its own gradient. Needs gradients enabled in `simulate`.
        """
        flat = [node for nodes in self.nodes.values() for node in nodes]
        found = torch.autograd.grad(target.sum(), flat, retain_graph=True, allow_unused=True)
        filled = [torch.zeros_like(node) if part is None else part for node, part in zip(flat, found, strict=True)]
        steps = len(filled) // len(self.nodes)
        parts = {name: torch.stack(filled[i * steps : (i + 1) * steps], 1) for i, name in enumerate(self.nodes)}
        return Gradients(parts["observations"], parts["states"], parts["memory"])

    @property
    def about(self) -> dict[str, Any]:
        """What to write into everything made with this simulation."""
        return {"estimator": self.estimator, "cut": sorted(self.cut), "world": self.world, "agent": self.agent}


def simulate(
    world: World,
    agent: Agent,
    observations: Tensor,
    actions: Tensor,
    memory: Tensor,
    steps: int,
    *,
    given: Tensor | None = None,
    estimator: Estimator = "straight_through",
    edits: Callable[[int], Mapping[str, Edit]] | None = None,
    cut: Collection[Cut] = frozenset(),
    start: Tensor | None = None,
    seed: int = 0,
) -> Simulation:
    """Simulate ``steps`` steps of an agent inside a world model.

    At each step the agent sees the world's own picture of the state, the reconstruction of the context's last observation first.
    Each row of the batch is computed on its own.

    Args:
        world: the world model.
        agent: any agent with the world's spaces.
        observations: the context, ``[n, world.context, …]``: see `World.begin`.
        actions: the context's, ``[n, world.context - 1, actions]``.
        memory: the agent's before the context's last observation, ``[n, memory_size]``.
        steps: number of steps; 0 only looks at the context's last observation.
        given: actions to take instead of the agent's (open loop), ``[n, steps, actions]``, one-hot or policy actions.
        estimator: one of `ESTIMATORS`.
        edits: changes inside the agent at a step: see `Agent.step`.
        cut: paths that pass no gradient, of `CUTS`. The values stay the same.
        start: a state to start from, ``[n, size]``, instead of the context's.
        seed: of the noise of gumbel, which is the same for all rows.

    Raises:
        SettingError: unknown estimator or cut, or too few given actions.
    """
    cuts = _checked(estimator, cut, given, steps)
    discrete = isinstance(agent.action_space, gym.spaces.Discrete)
    generator = torch.Generator().manual_seed(seed)
    state = _node(world.begin(observations, actions) if start is None else start)
    memory = _node(memory)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("observations", "states", "memory", *_PREDICTED)}
    for step in range(steps + 1):
        seen = _node(world.observe(state))
        rows["observations"].append(seen)
        rows["states"].append(state)
        rows["memory"].append(memory)
        into_agent = seen.detach() if "frame" in cuts else seen
        taken = agent.step(into_agent, memory, edits=edits(step) if edits is not None else {})
        rows["logits"].append(taken.logits)
        rows["values"].append(taken.value)
        if step == steps:
            break
        action = (
            given[:, step] if given is not None else _action(taken.logits, agent.action_space, estimator, generator)
        )
        rows["actions"].append(action)
        before, by = (state.detach() if "world" in cuts else state), (action.detach() if "action" in cuts else action)
        state = _node(world.next(before, by))
        # A tensor of its own, so that gradients with respect to it are not also those through the action just taken.
        memory = _node(taken.memory.detach() if "memory" in cuts else taken.memory.clone())
        rows["rewards"].append(world.reward(state))
        rows["ends"].append(world.end(state))
    n = len(memory)
    empty = {
        "actions": memory.new_zeros(n, 0, taken.logits.shape[1] // (1 if discrete else 2)),
        "rewards": memory.new_zeros(n, 0),
        "ends": memory.new_zeros(n, 0),
    }
    stacked = {name: torch.stack(parts, 1) if parts else empty[name] for name, parts in rows.items()}
    return Simulation(
        **stacked,
        estimator="none" if given is not None else estimator if discrete else "mean",
        cut=cuts,
        world=world.digest,
        agent=agent.digest,
        nodes={name: rows[name] for name in ("observations", "states", "memory")},
    )


_PREDICTED = ("logits", "values", "actions", "rewards", "ends")


def _checked(estimator: str, cut: Collection[str], given: Tensor | None, steps: int) -> frozenset[Cut]:
    if estimator not in ESTIMATORS:
        raise SettingError(f"The estimator is {estimator!r}; use one of {', '.join(ESTIMATORS)}.")
    if unknown := sorted(set(cut) - set(CUTS)):
        raise SettingError(f"The path {unknown[0]!r} can't be cut; cut {', '.join(CUTS)}.")
    if given is not None and given.shape[1] < steps:
        raise SettingError(
            f"{steps} steps need {steps} given actions, not {given.shape[1]}; give more, or simulate fewer steps."
        )
    return frozenset(name for name in CUTS if name in cut)


def _node(values: Tensor) -> Tensor:
    """Return values that gradients can be asked for, where gradients are enabled."""
    return values.detach().requires_grad_() if torch.is_grad_enabled() and not values.requires_grad else values


def _action(logits: Tensor, space: gym.Space[Any], estimator: Estimator, generator: torch.Generator) -> Tensor:
    """Return the agent's action as the world reads it, ``[n, actions]``, with the estimator's gradient."""
    if not isinstance(space, gym.spaces.Discrete):
        mean = policy_actions.best(logits, space)
        if not isinstance(space, gym.spaces.Box):
            return mean
        low, high = (torch.as_tensor(end.flatten(), device=mean.device) for end in policy_bounds(space))
        return mean.clamp(low, high)  # the environment clips
    if estimator == "gumbel":
        logits = logits + policy_actions.gumbel_noise(logits.shape[1:], generator).to(logits.device)
    soft = logits.log_softmax(-1) if estimator == "straight_through" else logits.softmax(-1)
    hard = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())  # exactly one-hot
