"""Background: the data that attributions and interventions are measured against, and the parts of a step that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import gymnasium as gym
import numpy as np
from torch import Tensor

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.regions import Regions
from rlhf_ray.reward.functions import INPUTS, Input, RewardFunction

Maps = dict[Input, FloatArray]
"""An attribution: for each input that the reward uses, ``[n, *shape]`` float64. The sum over a part is in units of the reward."""

FIELDS: Mapping[Input, str] = {
    "state": "observations",
    "action": "actions",
    "next_state": "next_observations",
    "done": "terminated",
}
"""The field of `Transitions` that holds each input."""
INPUT_WORDS: Mapping[Input, str] = {
    "state": "state",
    "action": "action",
    "next_state": "next state",
    "done": "end of the episode",
}
"""What texts call each input."""
CONSTANT = 1e-9
"""A reward whose standard deviation is below this share of its size is constant."""


@dataclass(frozen=True)
class Background:
    """A reward function with the data that its attributions refer to.

    Attributes:
        reward: the reward function.
        data: steps that give means, spreads and donors.
        regions: the parts of observations; None: they are one part.
        seed: seeds every draw.
    """

    reward: RewardFunction
    data: Transitions
    regions: Regions | None = None
    seed: int = 0

    def of(self, reward: RewardFunction) -> Background:
        """Return the same background for another reward function."""
        return replace(self, reward=reward)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    @property
    def inputs(self) -> list[Input]:
        """The inputs that the reward may depend on, in order."""
        return [name for name in INPUTS if name in self.reward.inputs]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the reward over the data; 0 if it is constant."""
        rewards = self.reward.of(self.data)
        spread = float(rewards.std())
        return spread if spread > CONSTANT * max(1.0, float(np.abs(rewards).max())) else 0.0

    def parts(self, name: Input) -> tuple[tuple[str, ...], BoolArray]:
        """Return the parts of an input: their names, and masks ``[parts, *shape]``.

        Observations have their regions, a continuous action has its components; a discrete action and the end of the episode are
        one part each.
        """
        shape = getattr(self.data, FIELDS[name]).shape[1:]
        word = INPUT_WORDS[name]
        if name in ("state", "next_state") and self.regions is not None:
            return tuple(f"{each} of the {word}" for each in self.regions.names), self.regions.masks
        size = int(np.prod(shape))
        if name == "action" and size > 1:
            names = tuple(f"component {i} of the action" for i in range(size))
            return names, np.eye(size, dtype=bool).reshape(size, *shape)
        return (f"the {word}",), np.ones((1, *shape), bool)

    @cached_property
    def part_names(self) -> list[str]:
        """Names of all parts of all inputs, in the order of `part_sums`."""
        return [part for name in self.inputs for part in self.parts(name)[0]]

    def part_sums(self, maps: Maps) -> FloatArray:
        """Sum maps within each part of each input: ``[n, parts]``."""
        sums = []
        for name in self.inputs:
            masks = self.parts(name)[1]
            flat = maps[name].reshape(len(maps[name]), -1)
            sums.append(flat @ masks.reshape(len(masks), -1).T.astype(np.float64))
        return np.concatenate(sums, 1)

    @cached_property
    def varies(self) -> BoolArray:
        """Whether each part takes more than one value in the data, ``[parts]``."""
        found = []
        for name in self.inputs:
            values = getattr(self.data, FIELDS[name])
            changing = np.asarray((values != values[:1]).any(0))
            found += [bool((changing & mask).any()) for mask in self.parts(name)[1]]
        return np.array(found)

    def typical(self, name: Input) -> FloatArray:
        """Return an input's typical value ``[*shape]`` float64: the most frequent code of each grid cell, else the mean."""
        values = getattr(self.data, FIELDS[name])
        if name in ("state", "next_state") and self.coded:
            codes, at = np.unique(values, return_inverse=True)
            at = at.reshape(values.shape)
            counts = np.stack([(at == code).sum(0) for code in range(len(codes))])
            return np.asarray(codes[counts.argmax(0)], np.float64)
        return np.asarray(values.astype(np.float64).mean(0))

    @property
    def coded(self) -> bool:
        """Whether observations are codes, whose mean means nothing: cells of a grid, or states of a table."""
        cells = self.regions is not None and self.regions.kind == "cell"
        return cells or isinstance(self.reward.observation_space, gym.spaces.Discrete)

    def typical_tensors(self) -> tuple[Tensor, ...]:
        """Return `typical` as arguments of `RewardFunction.forward`, ``[1, …]`` each (for a discrete action: the frequencies)."""
        state, action, next_state, done = self.reward.tensors(self.data)
        before, after = self.typical("state"), self.typical("next_state")
        return (
            state.new_tensor(before)[None],
            action.mean(0, keepdim=True),
            next_state.new_tensor(after)[None],
            done.mean(0, keepdim=True),
        )

    def scales(self) -> tuple[Tensor, ...]:
        """Return how much each element of each argument of `RewardFunction.forward` typically differs, ``[1, …]`` each.

        For features and continuous actions that is their standard deviation; pixels and cells share one; a discrete action or the
        end of an episode counts as 1.
        """
        state, action, next_state, done = self.reward.tensors(self.data)
        features = self.regions is not None and self.regions.kind == "feature"

        def of(values: Tensor, each: bool) -> Tensor:
            deviation = values.std(0, unbiased=False, keepdim=True)
            return deviation if each else deviation.new_full(deviation.shape, float(deviation.square().mean().sqrt()))

        discrete = isinstance(self.reward.action_space, gym.spaces.Discrete)
        return (
            of(state, features),
            action.new_ones(action[:1].shape) if discrete else of(action, True),
            of(next_state, features),
            done.new_ones(1),
        )

    def numpy(self, tensors: tuple[Tensor, ...]) -> Maps:
        """Convert attributions to `RewardFunction.forward`'s arguments to maps; those to a discrete action's choices add up."""
        found: Maps = {}
        for name, tensor in zip(INPUTS, tensors, strict=True):
            if name in self.reward.inputs:
                values = tensor.detach().double().numpy()
                shape = getattr(self.data, FIELDS[name]).shape[1:]
                found[name] = values.sum(-1) if name == "action" and values.shape[1:] != shape else values
        return found

    def zeros(self, steps: Transitions) -> Maps:
        """Return maps of zeros for ``steps``."""
        return {name: np.zeros(getattr(steps, FIELDS[name]).shape) for name in self.inputs}


def replaced(steps: Transitions, name: Input, mask: BoolArray, values: Array) -> Transitions:
    """Return ``steps`` with the part ``mask`` of an input replaced by ``values`` ``[n, *shape]``, in the input's own type."""
    own = getattr(steps, FIELDS[name])
    if own.dtype == bool and values.dtype != bool:
        values = values > 0.5
    if np.issubdtype(own.dtype, np.integer) and not np.issubdtype(values.dtype, np.integer):
        limits = np.iinfo(own.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return steps.with_(**{FIELDS[name]: np.where(mask, values.astype(own.dtype), own)})


def repeated(steps: Transitions, times: int) -> Transitions:
    """Return ``steps`` ``times`` times, one after the other."""
    return steps[np.tile(np.arange(len(steps)), times)]
