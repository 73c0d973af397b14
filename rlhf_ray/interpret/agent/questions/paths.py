"""Paths: by which way the world's state reaches a quantity. Parts of one gradient that add up to it.

A world model's state at the moment can reach a quantity ``k`` steps on by four ways, told apart by what they pass through:

* *frame*: the world goes on by itself, and the agent sees the result where the quantity is read;
* *memory*: the agent sees it earlier and remembers it;
* *action*: the agent acts on it, and the action changes the world;
* *world*: the quantity is the world's own prediction, and no agent is in between.

Each part is the difference of two gradients, with a way open and cut (`Cut`), and therefore they add up. `Ways.by_step` is
computed otherwise, by the chain rule: each path enters the agent for the first time at one frame. So its sum tests the switches:
`Ways.gap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.world_model.simulate import Cut, Simulation

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
    """The gradient of a quantity by the world's state at the moment, ``[n, size]``, with its parts.

    Attributes:
        total: the gradient, ``[n, size]``.
        parts: by way, ``[n, size]`` each.
        by_step: parts by the first frame that the agent saw of it, ``[n, steps + 1, size]``.
    """

    total: FloatArray
    parts: Mapping[Way, FloatArray]
    by_step: FloatArray

    @property
    def gap(self) -> float:
        """Largest difference between the total and the sum of the steps, relative to the largest total of its row."""
        size = np.maximum(np.abs(self.total).max(1, initial=0.0), 1e-12)
        missed = np.abs(self.total - self.by_step.sum(1) - self.parts["world"]).max(1, initial=0.0)
        return float((missed / size).max(initial=0.0)) if self.total.any() else float(missed.max(initial=0.0))

    @property
    def shares(self) -> dict[Way, FloatArray]:
        """How much of the gradient each way makes up, ``[n]``: its part's projection on the total. 0 without gradient.

        They add up to 1. A share is negative where a way works against the rest.
        """
        square = (self.total**2).sum(1)
        products = {name: (part * self.total).sum(1) for name, part in self.parts.items()}
        return {
            name: np.divide(product, square, out=np.zeros_like(product), where=square > 0.0)
            for name, product in products.items()
        }


def ways(question: AgentQuestion, moments: WorldMoments) -> Ways:
    """Split the gradient of a quantity ``k`` steps on with respect to the world's state at the moment.

    Args:
        question: with a world model; its cuts and sources don't count.
        moments: where.

    Raises:
        SettingError: there is no world model.
    """
    if question.world is None:
        raise SettingError("Paths need a world model; without one, only the agent's memory connects steps.")
    with torch.no_grad():
        state = question.world.begin(moments.observations, moments.actions)
    state = state.detach().requires_grad_()

    def rollout(*cut: Cut) -> Simulation:
        inputs = {"world": state, "memory": moments.memory.detach().clone().requires_grad_()}
        return question.rollout(moments, inputs, cut=frozenset(cut))

    def gradient(*cut: Cut) -> FloatArray:
        target = question.read(rollout(*cut))
        return _gradient(target.sum(), state) if target.requires_grad else np.zeros(state.shape)

    total, no_action = gradient(), gradient("action")
    unseen, seen = gradient("action", "frame"), gradient("action", "memory")
    parts: dict[Way, FloatArray] = {
        "action": total - no_action, "frame": seen - unseen, "memory": no_action - seen, "world": unseen,
    }  # fmt: skip
    # The chain rule at the first frame that the agent sees: the world alone up to there, everything from there on.
    whole, alone = rollout(), rollout("action")
    frames = list(whole.nodes["observations"])
    slopes = torch.autograd.grad(question.read(whole).sum(), frames, retain_graph=True, allow_unused=True)
    steps = [
        np.zeros(state.shape) if slope is None or not end.requires_grad else _gradient(end, state, slope)
        for slope, end in zip(slopes, alone.observations.unbind(1), strict=True)
    ]
    return Ways(total, parts, np.stack(steps, 1))


def _gradient(target: Tensor, by: Tensor, weights: Tensor | None = None) -> FloatArray:
    slope = torch.autograd.grad(target, by, grad_outputs=weights, retain_graph=True, allow_unused=True)[0]
    values: FloatArray = (torch.zeros_like(by) if slope is None else slope).detach().double().numpy()
    return values
