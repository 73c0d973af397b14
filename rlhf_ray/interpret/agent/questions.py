"""Questions about an agent: what a value, an action or a direction depends on, now or some steps on.

In a notebook::

    moments = draw_moments(agent, episodes, 32, rng, context=world.context, ahead=0)
    question = AgentQuestion(agent, value(), steps=4, world=world).against(moments)
    METHODS.make("smoothgrad").attribute(question, moments)["frame"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import WorldStepBatch
from rlhf_ray.data.arrays import BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.world_model.simulate import Simulation, World, simulate
from rlhf_ray.interpret.attribution.question import Maps, Question
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.effects.regions import regions_of

Read = Callable[[Agent, Simulation, int], Tensor]


@dataclass(frozen=True)
class Quantity:
    """A number that an agent or its world computes."""

    name: str  # in file names and tables
    title: str  # for people, with its unit
    read: Read  # returns it ``[n]`` at step ``k`` of a simulation
    ahead: int = 0  # steps after ``k`` that it reads
    # of a quantity that is about what the agent chooses: the same, given first the simulation without a change, whose choice
    # stays; None: it chooses nothing
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
        return log_odds(simulation.logits[:, k], plain.logits[:, k])

    title = "log-odds of the most likely action"
    return Quantity("action", title, lambda _agent, simulation, k: odds(simulation, simulation, k), choice=odds)


def log_odds(logits: Tensor, first: Tensor) -> Tensor:
    """Return the log-odds ``[n]`` of each row's most likely action by ``first``: log-probabilities lose their gradient near 0."""
    best = torch.nn.functional.one_hot(first.argmax(1), first.shape[1]).bool()
    return logits[best] - logits.masked_fill(best, -torch.inf).logsumexp(1)


def action_mean(space: gym.Space[Any], dimension: int) -> Quantity:
    """Return the mean of one dimension of a Box action, as the policy has it.

    Raises:
        SettingError: the space is not Box, or has no such dimension.
    """
    size = int(torch.Size(space.shape).numel()) if isinstance(space, gym.spaces.Box) else 0
    if not 0 <= dimension < size:
        raise SettingError(f"{space} has no dimension {dimension} with a mean; use one of 0 to {size - 1}.")
    title = f"mean of action dimension {dimension}"
    return Quantity(f"mean_{dimension}", title, lambda _agent, simulation, k: simulation.logits[:, k, dimension])


def loading(basis: Directions, component: int) -> Quantity:
    """Return the score of a component of a basis in the agent's memory after step ``k``."""
    center = torch.as_tensor(basis.center, dtype=torch.float32)
    row = torch.as_tensor(basis.filters[component], dtype=torch.float32)

    def read(agent: Agent, simulation: Simulation, k: int) -> Tensor:
        step = agent.step(simulation.observations[:, k], simulation.memory[:, k])
        return (step.memory.flatten(1) - center) @ row

    return Quantity(f"loading_{component}", f"score of {basis.names[component]}", read)


Source = Literal["frame", "memory", "world"]
SOURCES: Mapping[str, str] = {"frame": "frame", "memory": "agent's memory", "world": "world's memory"}
"""What a quantity is attributed to, and what texts call it."""
CERTAIN = 30.0
"""Logit of an end that was recorded."""
BLOCKS = 64
"""Most parts that a memory is divided into."""


@dataclass(frozen=True)
class AgentQuestion(Question):
    """A quantity, how far ahead, and how the steps in between are computed.

    Without a world model, the steps in between are the recording's: the agent looks at the recorded frames, and only its own memory
    carries anything on. With one, the agent acts inside it, and the frame is the whole context that the world begins with.
    """

    agent: Agent  # the agent
    quantity: Quantity  # what is asked
    steps: int = 0  # how many steps on; 0 is now
    world: World | None = None  # the world model; None for the recording
    # what the quantity is attributed to: frame and memory, or world and memory
    sources: tuple[Source, ...] = ("frame", "memory")
    usual_moments: WorldStepBatch | None = None  # moments that give typical values and scales: see `against`
    seed: int = 0  # of SmoothGrad's noise
    words: ClassVar[Mapping[str, str]] = SOURCES
    output: ClassVar[str] = "quantity"
    noise: ClassVar[float] = 0.02

    def __post_init__(self) -> None:
        if "world" in self.sources and (self.world is None or "frame" in self.sources):
            raise SettingError(
                f"sources is {self.sources}: the world's memory needs a world model, and takes the frame's place; leave one out."
            )

    @property
    def ahead(self) -> int:
        """Steps after the moment that are looked at."""
        return self.steps + self.quantity.ahead

    def against(self, moments: WorldStepBatch) -> AgentQuestion:
        """Return the same question with the typical values and scales of some moments."""
        return replace(self, usual_moments=moments)

    @property
    def names(self) -> list[str]:
        """The sources that the agent has, in order."""
        return [name for name in self.sources if name != "memory" or self.agent.memory_size]

    @property
    def background(self) -> WorldStepBatch:
        """The moments that tell what is usual."""
        if self.usual_moments is None:
            raise SettingError(
                "The question has no typical values: give moments that have them, by question.against(moments)."
            )
        return self.usual_moments

    @property
    def images(self) -> tuple[str, ...]:
        """The frame, if it is an image."""
        return ("frame",) if "frame" in self.sources and is_image(self.agent.observation_space) else ()

    def inputs(self, moments: WorldStepBatch) -> dict[str, Tensor]:
        """Return the values of the sources at each moment, ``[n, …]`` each."""
        values: dict[str, Tensor] = {}
        for name in self.names:
            if name == "memory":
                values[name] = moments.memory.clone()
            elif name == "world":
                assert self.world is not None
                with torch.no_grad():
                    values[name] = self.world.begin(moments.observations, moments.actions).detach()
            else:
                values[name] = (moments.observations if self.world is not None else moments.observations[:, -1]).clone()
        return values

    def rollout(self, moments: WorldStepBatch, inputs: Mapping[str, Tensor]) -> Simulation:
        """Compute the steps that the quantity reads; ``inputs``: values of some sources, instead of the moments' own."""
        memory = inputs.get("memory", moments.memory)
        if self.world is None:
            return recorded(self.agent, moments, inputs.get("frame", moments.observations[:, -1]), memory, self.ahead)
        return simulate(
            self.world,
            self.agent,
            inputs.get("frame", moments.observations),
            moments.actions,
            memory,
            self.ahead,
            start=inputs.get("world"),
        )

    def ask(self, moments: WorldStepBatch, inputs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the quantity ``[n]``."""
        simulation = self.rollout(moments, inputs or {})
        if not inputs or self.quantity.choice is None:
            return self.read(simulation)
        with torch.no_grad():
            plain = self.rollout(moments, {})
        return self.quantity.choice(plain, simulation, self.steps)

    def read(self, simulation: Simulation) -> Tensor:
        """Return the quantity ``[n]`` of a simulation."""
        return self.quantity.read(self.agent, simulation, self.steps)

    @cached_property
    def typical(self) -> dict[str, Tensor]:
        """The mean of each source, ``[1, …]``."""
        return {name: values.mean(0, keepdim=True) for name, values in self.inputs(self.background).items()}

    @cached_property
    def scales(self) -> dict[str, Tensor]:
        """255 for images; the standard deviation of each feature; for a memory one for all its units."""
        scales = {}
        for name, values in self.inputs(self.background).items():
            if name in self.images:
                scales[name] = torch.full((1,), 255.0)
            elif name == "frame":
                scales[name] = values.std(0, unbiased=False, keepdim=True)
            else:
                scales[name] = values.var(0, unbiased=False).mean().sqrt()[None]
        return scales

    @cached_property
    def unit(self) -> float:
        """Mean absolute difference of the quantity to that of typical sources."""
        nothing = {name: np.zeros((len(self.background), 1)) for name in self.names}
        return float(self.gap(self.background, nothing).mean())

    def parts(self, name: str) -> tuple[tuple[str, ...], BoolArray]:
        """Return the parts of a source: patches or features of a frame, up to `BLOCKS` blocks of a memory."""
        if name == "frame":
            regions = regions_of(self.agent.observation_space)
            return regions.names, regions.masks
        size = self.agent.memory_size if name == "memory" or self.world is None else self.world.size
        count = min(BLOCKS, size)
        masks: BoolArray = (np.arange(size) * count // max(size, 1))[None] == np.arange(count)[:, None]
        return tuple(f"part {i} of the {self.words[name]}" for i in range(count)), masks

    def maps(self, tensors: Mapping[str, Tensor]) -> Maps:
        """Convert attributions to maps: those to a world model's context add up."""
        maps = super().maps(tensors)
        if "frame" in maps and self.world is not None:
            maps["frame"] = maps["frame"].sum(1)
        return maps

    def layers(self) -> dict[str, nn.Module]:
        """The layers of a `NetworkAgent` that is asked about now: later, they run more than once."""
        network = getattr(self.agent, "network", None)
        return dict(network.named_modules()) if isinstance(network, nn.Module) and not self.ahead else {}


def recorded(agent: Agent, moments: WorldStepBatch, frame: Tensor, memory: Tensor, steps: int) -> Simulation:
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
        taken = agent.step(seen, memory)
        logits.append(taken.logits)
        values.append(taken.value)
        memory = taken.memory
    states = [memory.new_zeros(len(memory), 0).requires_grad_(torch.is_grad_enabled()) for _ in frames]
    return Simulation(
        observations=torch.stack(frames, 1),
        states=torch.stack(states, 1),
        memory=torch.stack(memories, 1),
        logits=torch.stack(logits, 1),
        values=torch.stack(values, 1),
        actions=moments.given[:, :steps],
        rewards=moments.rewards[:, :steps],
        ends=(2.0 * moments.ended[:, :steps] - 1.0) * CERTAIN,
        nodes={"observations": frames, "states": states, "memory": memories},
    )


THROUGH_TIME, NOW = "smoothgrad", "difference_x_gradient"
"""Methods whose maps are drawn: gradients averaged over noisy copies through time, and the panel's of the step itself."""
UNFAITHFUL = "By deletion and insertion it orders the frame no better than a random order can."
UNCHECKED = "Its faithfulness was not checked."


@dataclass(frozen=True)
class Faithful:
    """Which maps order the parts of a frame better than every random order does, in deletion and in insertion."""

    by_map: Mapping[str, bool] = field(default_factory=dict)  # by QUANTITY/METHOD
    unmoved: tuple[str, ...] = ()  # names of quantities that the frame doesn't move: their maps are zeros

    def doubt(self, quantity: str, method: str) -> str:
        """Return why not to trust a map; empty if there is no reason."""
        if quantity in self.unmoved:
            return ""
        known = self.by_map.get(f"{quantity}/{method}")
        return "" if known else UNCHECKED if known is None else UNFAITHFUL
