"""Paths: by which way the past reaches a quantity. Parts of one gradient that add up to it.

A world model's state at the moment can reach a quantity ``k`` steps on by four ways, told apart by what they pass through:

* *frame*: the world goes on by itself, and the agent sees the result where the quantity is read;
* *memory*: the agent sees it earlier and remembers it;
* *action*: the agent acts on it, and the action changes the world;
* *world*: the quantity is the world's own prediction, and no agent is in between.

The agent's memory at the moment has two: *memory* and *action*.

Each part is the difference of two gradients, with a way open and cut (`Cut`), and therefore they add up. `Ways.by_step` is
computed otherwise, by the chain rule: each path enters the agent for the first time at one frame, or leaves the agent's memory for
the first time with one action. So its sum tests the switches: `Ways.gap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.world_model.simulate import Cut
from rlhf_ray.interpret.agent.world_model.world import World

Way = Literal["frame", "memory", "action", "world"]
WAYS: Mapping[Way, str] = {
    "frame": "seen when the quantity is read",
    "memory": "seen before and remembered by the agent",
    "action": "through the agent's actions into the world",
    "world": "the world's own prediction",
}
"""What texts call each way."""


@dataclass(frozen=True)
class Ways:
    """One gradient ``[n, size]`` with its parts.

    Attributes:
        source: what the gradient is with respect to, at the moment: world or memory.
        total: the gradient, ``[n, size]``.
        parts: by way, ``[n, size]`` each.
        by_step: parts by step, ``[n, steps + 1, size]``. Of the world's state: which frame was the first that the agent saw of it.
            Of the agent's memory: with which action it left the memory first.
        rest: what no step accounts for, ``[n, size]``: the world's own prediction, or what never left the memory.
        about: quantity, steps, estimator, digests.
    """

    source: Literal["world", "memory"]
    total: FloatArray
    parts: Mapping[Way, FloatArray]
    by_step: FloatArray
    rest: FloatArray
    about: Mapping[str, Any]

    @property
    def gap(self) -> float:
        """Largest difference between the total and the sum of the steps, relative to the largest total of its row."""
        size = np.maximum(np.abs(self.total).max(1, initial=0.0), 1e-12)
        missed = np.abs(self.total - self.by_step.sum(1) - self.rest).max(1, initial=0.0)
        return float((missed / size).max(initial=0.0)) if self.total.any() else float(missed.max(initial=0.0))

    @property
    def shares(self) -> dict[Way, FloatArray]:
        """How much of the gradient each way makes up, ``[n]``: its part's projection on the total. 0 without gradient.

        They add up to 1. A share is negative where a way works against the rest.
        """
        return {name: self._share(part[:, None])[:, 0] for name, part in self.parts.items()}

    @property
    def step_shares(self) -> FloatArray:
        """The same for steps, ``[n, steps + 1]``."""
        return self._share(self.by_step)

    def _share(self, parts: FloatArray) -> FloatArray:
        square = (self.total**2).sum(1, keepdims=True)
        along = np.einsum("nts,ns->nt", parts, self.total)
        share: FloatArray = np.divide(along, square, out=np.zeros_like(along), where=square > 0.0)
        return share


def ways(question: AgentQuestion, moments: WorldMoments, source: Literal["world", "memory"] = "world") -> Ways:
    """Split the gradient of a quantity ``k`` steps on with respect to the world's state, or the agent's memory, at the moment.

    Args:
        question: with a world model; its cuts and sources don't count.
        moments: where.
        source: with respect to what.

    Raises:
        SettingError: there is no world model, or the agent has no memory.
    """
    if question.world is None:
        raise SettingError("Paths need a world model; without one, only the agent's memory connects steps.")
    if source == "memory" and not question.agent.memory_size:
        raise SettingError("The agent has no memory; ask for the paths of the world's state.")
    with torch.no_grad():
        start = question.world.begin(moments.observations, moments.actions)
    leaves = {"world": start.detach().requires_grad_(), "memory": moments.memory.detach().clone().requires_grad_()}
    of = leaves[source]

    def cut(*names: Cut) -> FloatArray:
        simulation = question.rollout(moments, leaves, cut=frozenset(names))
        target = question.read(simulation)
        return _numpy(_gradient(target.sum(), of)) if target.requires_grad else np.zeros(of.shape)

    total, no_action = cut(), cut("action")
    parts: dict[Way, FloatArray] = {"action": total - no_action}
    if source == "world":
        own = cut("action", "frame")
        seen = cut("action", "memory")
        parts |= {"frame": seen - own, "memory": no_action - seen, "world": own}
    else:
        parts["memory"] = no_action
    by_step, rest = _by_step(question, moments, leaves, source)
    return Ways(source, total, parts, by_step, rest, question.about | {"cut": [], "source": source})


def _by_step(
    question: AgentQuestion, moments: WorldMoments, leaves: Mapping[str, Tensor], source: Literal["world", "memory"]
) -> tuple[FloatArray, FloatArray]:
    """Apply the chain rule at the first frame that the agent sees, or the first action that leaves it."""
    assert question.world is not None
    of = leaves[source]
    listening = _Listening(question.world)
    whole = question.rollout(moments, leaves, cut=frozenset(), world=listening)
    target = question.read(whole)
    # No action: the world alone from its state to a frame, or the agent's memory alone to an action.
    alone = question.rollout(moments, leaves, cut=frozenset(("action",)))
    crossings: list[Tensor]
    if source == "world":
        crossings, ends = list(whole.nodes["observations"]), list(alone.observations.unbind(1))
        own = question.rollout(moments, leaves, cut=frozenset(("action", "frame")))
        direct = question.read(own)
    else:
        crossings, ends = listening.actions, list(alone.actions.unbind(1))
        direct = question.read(alone)
    rest = _gradient(direct.sum(), of) if direct.requires_grad else torch.zeros_like(of)
    slopes = torch.autograd.grad(target.sum(), crossings, retain_graph=True, allow_unused=True) if crossings else ()
    steps = []
    for slope, end in zip(slopes, ends, strict=True):
        known = slope is not None and end.requires_grad
        steps.append(_gradient(end, of, slope) if known else torch.zeros_like(of))
    stacked = torch.stack(steps, 1) if steps else of.new_zeros(len(of), 0, of.shape[1])
    return _numpy(stacked), _numpy(rest)


class _Listening:
    """A world that keeps the actions that come into it."""

    def __init__(self, world: World):
        self.world = world
        self.size, self.context, self.digest, self.agent = world.size, world.context, world.digest, world.agent
        self.begin, self.observe, self.reward, self.end = world.begin, world.observe, world.reward, world.end
        self.actions: list[Tensor] = []

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        actions = actions if actions.requires_grad else actions.detach().requires_grad_()
        self.actions.append(actions)
        return self.world.next(state, actions)


def _gradient(of: Tensor, by: Tensor, weights: Tensor | None = None) -> Tensor:
    found = torch.autograd.grad(of, by, grad_outputs=weights, retain_graph=True, allow_unused=True)[0]
    return torch.zeros_like(by) if found is None else found


def _numpy(values: Tensor) -> FloatArray:
    array: FloatArray = values.detach().double().numpy()
    return array
