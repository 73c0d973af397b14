"""Question: a quantity now or some steps on, as a differentiable function of frame, agent memory and world memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.attribution.quantities import Quantity
from rlhf_ray.interpret.agent.world_model.simulate import Cut, Estimator, Simulation, simulate
from rlhf_ray.interpret.agent.world_model.world import World

Source = Literal["frame", "memory", "world"]
SOURCES: Mapping[Source, str] = {"frame": "frame", "memory": "agent's memory", "world": "world's memory"}
"""What a quantity is attributed to, and what texts call it."""
CERTAIN = 30.0
"""Logit of an end that was recorded."""


@dataclass(frozen=True)
class Question:
    """A quantity, how far ahead, and how the steps in between are computed.

    Without a world model, the steps in between are the recording's: the agent looks at the recorded frames, and only its own memory
    carries anything on. With one, the agent acts inside it, and the frame is the whole context that the world begins with.

    Attributes:
        agent: the agent.
        quantity: what is asked.
        steps: how many steps on; 0 is now.
        world: the world model; None for the recording.
        estimator: how the agent's actions pass gradients in the world model.
        cut: paths that pass no gradient.
        sources: what the quantity is attributed to: frame and memory, or world and memory.
    """

    agent: Agent
    quantity: Quantity
    steps: int = 0
    world: World | None = None
    estimator: Estimator = "straight_through"
    cut: frozenset[Cut] = field(default_factory=frozenset)
    sources: tuple[Source, ...] = ("frame", "memory")

    def __post_init__(self) -> None:
        if "world" in self.sources and (self.world is None or "frame" in self.sources):
            raise SettingError(
                f"sources is {self.sources}: the world's memory needs a world model, and takes the frame's place; leave one out."
            )

    @property
    def ahead(self) -> int:
        """Steps after the moment that are looked at."""
        return self.steps + self.quantity.ahead

    @property
    def names(self) -> list[Source]:
        """The sources that the agent has, in order."""
        return [name for name in self.sources if name != "memory" or self.agent.memory_size]

    @property
    def about(self) -> dict[str, Any]:
        """What is written into every result."""
        return {
            "quantity": self.quantity.name,
            "steps": self.steps,
            "estimator": "recording" if self.world is None else self.estimator,
            "cut": sorted(self.cut),
            "agent": self.agent.digest,
            "world": None if self.world is None else self.world.digest,
        }

    def inputs(self, moments: WorldMoments) -> dict[Source, Tensor]:
        """Return the values of the sources at each moment, ``[n, …]`` each."""
        found: dict[Source, Tensor] = {}
        for name in self.names:
            if name == "memory":
                found[name] = moments.memory
            elif name == "world":
                assert self.world is not None
                with torch.no_grad():
                    found[name] = self.world.begin(moments.observations, moments.actions).detach()
            else:
                found[name] = moments.observations if self.world is not None else moments.observations[:, -1]
        return found

    def rollout(
        self,
        moments: WorldMoments,
        inputs: Mapping[Source, Tensor],
        cut: frozenset[Cut] | None = None,
        world: World | None = None,
    ) -> Simulation:
        """Compute the steps that the quantity reads.

        Args:
            moments: where.
            inputs: values of some sources, instead of the moments' own.
            cut: instead of the question's.
            world: instead of the question's.
        """
        memory = inputs.get("memory", moments.memory)
        cut = self.cut if cut is None else cut
        if self.world is None:
            return recorded(
                self.agent, moments, inputs.get("frame", moments.observations[:, -1]), memory, self.ahead, cut
            )
        return simulate(
            world or self.world, self.agent, inputs.get("frame", moments.observations), moments.actions, memory, self.ahead,
            estimator=self.estimator, cut=cut, start=inputs.get("world"),
        )  # fmt: skip

    def ask(self, moments: WorldMoments, inputs: Mapping[Source, Tensor] | None = None) -> Tensor:
        """Return the quantity ``[n]``."""
        return self.read(self.rollout(moments, inputs or {}))

    def read(self, simulation: Simulation) -> Tensor:
        """Return the quantity ``[n]`` of a simulation."""
        return self.quantity.read(self.agent, simulation, self.steps)

    def function(self, moments: WorldMoments) -> Callable[..., Tensor]:
        """Return the quantity as a function of the sources' values in order; a last argument says which rows of the moments."""

        def of(*arguments: Tensor) -> Tensor:
            *values, rows = arguments
            return self.ask(moments[rows], dict(zip(self.names, values, strict=True)))

        return of


def recorded(
    agent: Agent, moments: WorldMoments, frame: Tensor, memory: Tensor, steps: int, cut: frozenset[Cut] = frozenset()
) -> Simulation:
    """Let the agent look at recorded frames, as a simulation whose world is the recording.

    Raises:
        SettingError: the moments have fewer steps.
    """
    if moments.ahead < steps:
        raise SettingError(
            f"The moments have {moments.ahead} steps ahead, but {steps} are asked for; cut longer moments."
        )
    frames, memories, logits, values = [], [], [], []
    for step in range(steps + 1):
        seen = frame if step == 0 else moments.following[:, step - 1].clone()
        if torch.is_grad_enabled() and not seen.requires_grad:
            seen = seen.detach().requires_grad_()
        if torch.is_grad_enabled() and not memory.requires_grad:
            memory = memory.detach().requires_grad_()
        frames.append(seen)
        memories.append(memory)
        taken = agent.step(seen.detach() if "frame" in cut else seen, memory)
        logits.append(taken.logits)
        values.append(taken.value)
        memory = taken.memory.detach() if "memory" in cut else taken.memory
    states = [memory.new_zeros(len(memory), 0).requires_grad_(torch.is_grad_enabled()) for _ in frames]
    return Simulation(
        observations=torch.stack(frames, 1), states=torch.stack(states, 1), memory=torch.stack(memories, 1),
        logits=torch.stack(logits, 1), values=torch.stack(values, 1), actions=moments.given[:, :steps],
        rewards=moments.rewards[:, :steps], ends=(2.0 * moments.ended[:, :steps] - 1.0) * CERTAIN,
        estimator="recording", cut=cut, world="", agent=agent.digest,
        nodes={"observations": frames, "states": states, "memory": memories},
    )  # fmt: skip
