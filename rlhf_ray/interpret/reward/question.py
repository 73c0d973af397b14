"""The question of a reward's attributions: the reward, the data that tell what is usual, and the parts of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.attribution.question import Maps, Question
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.interpret.reward.consistency import gradients_are_own
from rlhf_ray.optim import Adam
from rlhf_ray.reward.functions import INPUTS, RewardFunction, TorchReward

FIELDS: Mapping[str, str] = {
    "state": "observations",
    "action": "actions",
    "next_state": "next_observations",
    "done": "terminated",
}
"""The field of `Transitions` that holds each input."""
CONSTANT = 1e-9
"""A reward whose standard deviation is below this share of its size is constant."""
BATCH = 64
"""Steps per gradient step of a network that learns permuted rewards."""


@dataclass(frozen=True)
class RewardQuestion(Question):
    """A reward function with the data that give means, spreads and donors, and the parts of observations (None: they are one)."""

    reward: RewardFunction
    data: Transitions
    regions: Regions | None = None
    seed: int = 0
    words: ClassVar[Mapping[str, str]] = {
        "state": "state",
        "action": "action",
        "next_state": "next state",
        "done": "end of the episode",
    }
    output: ClassVar[str] = "reward"
    noise: ClassVar[float] = 0.25

    @property
    def names(self) -> list[str]:
        return [name for name in INPUTS if name in self.reward.inputs]

    @property
    def background(self) -> Transitions:
        return self.data

    @property
    def images(self) -> tuple[str, ...]:
        return self._observations if self.regions is not None and self.regions.kind == "patch" else ()

    @property
    def planes(self) -> tuple[str, ...]:
        return () if self.regions is None else self.regions.names[len(self.regions) - self.regions.planes :]

    @property
    def cells(self) -> tuple[int, int] | None:
        return self.regions.layout if self.regions is not None and self.regions.kind == "cell" else None

    @property
    def coded(self) -> bool:
        return self.cells is not None or isinstance(self.reward.observation_space, gym.spaces.Discrete)

    @property
    def _observations(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name in ("state", "next_state"))

    @cached_property
    def unit(self) -> float:
        """Standard deviation of the reward over the data; 0 if it is constant."""
        rewards = self.reward.of(self.data)
        spread = float(rewards.std())
        return spread if spread > CONSTANT * max(1.0, float(np.abs(rewards).max())) else 0.0

    @property
    def noise_seed(self) -> int:
        return int(self.rng("smoothgrad").integers(2**31))

    def inputs(self, moments: Transitions) -> dict[str, Tensor]:
        tensors = dict(zip(INPUTS, self.reward.tensors(moments), strict=True))
        return {name: tensors[name] for name in INPUTS if name in self.reward.inputs}

    def ask(self, moments: Transitions, inputs: Mapping[str, Tensor] | None = None) -> Tensor:
        arguments: dict[str, Tensor] = dict(zip(INPUTS, self.reward.tensors(moments), strict=True))
        arguments |= inputs or {}
        return self.reward.forward(*arguments.values())

    def arrays(self, moments: Transitions) -> dict[str, Array]:
        return {name: getattr(moments, FIELDS[name]) for name in self.names}

    def values(self, moments: Transitions) -> FloatArray:
        return self.reward.of(moments)

    def changed(self, moments: Transitions, name: str, values: Array) -> FloatArray:
        actual = getattr(moments, FIELDS[name])
        if actual.dtype == bool and values.dtype != bool:
            values = values > 0.5
        if np.issubdtype(actual.dtype, np.integer) and not np.issubdtype(values.dtype, np.integer):
            limits = np.iinfo(actual.dtype)
            values = np.clip(np.rint(values), limits.min, limits.max)
        draws, n = values.shape[:2]
        steps = moments[np.tile(np.arange(n), draws)]
        steps = steps.with_(**{FIELDS[name]: values.reshape(draws * n, *values.shape[2:]).astype(actual.dtype)})
        return self.reward.of(steps).reshape(draws, n)

    def parts(self, name: str) -> tuple[tuple[str, ...], BoolArray]:
        """See `Question.parts`. Observations have their regions, a continuous action its components; the others are one part."""
        shape = getattr(self.data, FIELDS[name]).shape[1:]
        word = self.words[name]
        if name in ("state", "next_state") and self.regions is not None:
            return tuple(f"{region} of the {word}" for region in self.regions.names), self.regions.masks
        size = int(np.prod(shape))
        if name == "action" and size > 1:
            names = tuple(f"component {i} of the action" for i in range(size))
            return names, np.eye(size, dtype=bool).reshape(size, *shape)
        return (f"the {word}",), np.ones((1, *shape), bool)

    def usual(self, name: str) -> FloatArray:
        """Return an input's typical value ``[*shape]`` float64: the most frequent code of each grid cell, else the mean."""
        values = getattr(self.data, FIELDS[name])
        if name in ("state", "next_state") and self.coded:
            from scipy.stats import mode  # a slow import

            return np.asarray(mode(values, axis=0).mode, np.float64)
        return np.asarray(values.astype(np.float64).mean(0))

    @cached_property
    def typical(self) -> dict[str, Tensor]:
        """`usual` as arguments of `RewardFunction.forward`, ``[1, …]`` each; of a discrete action, the frequencies."""
        return {
            name: values.new_tensor(self.usual(name))[None]
            if name in self._observations
            else values.mean(0, keepdim=True)
            for name, values in self.inputs(self.data).items()
        }

    @cached_property
    def scales(self) -> dict[str, Tensor]:
        """Standard deviations of features and continuous actions; pixels and cells share one; 1 for discrete actions and ends."""
        features = self.regions is not None and self.regions.kind == "feature"
        continuous = not isinstance(self.reward.action_space, gym.spaces.Discrete)
        scales = {}
        for name, values in self.inputs(self.data).items():
            deviation = values.std(0, unbiased=False, keepdim=True)
            if name == "done" or (name == "action" and not continuous):
                scales[name] = values.new_ones(values[:1].shape)
            elif name == "action" or features:
                scales[name] = deviation
            else:
                scales[name] = deviation.new_full(deviation.shape, float(deviation.square().mean().sqrt()))
        return scales

    def maps(self, tensors: Mapping[str, Tensor]) -> Maps:
        maps = super().maps(tensors)
        # Those to a discrete action's choices add up.
        if "action" in maps and maps["action"].shape[1:] != self.data.actions.shape[1:]:
            maps["action"] = maps["action"].sum(-1)
        return maps

    @cached_property
    def _own_gradients(self) -> bool:
        return gradients_are_own(self.reward, self.data)

    def why_no_gradients(self) -> str | None:
        if not self.reward.differentiable:
            return f"The reward {self.reward.name!r} has no gradients."
        if not self._own_gradients:
            return f"The gradients of {self.reward.name!r} are not those of the reward."
        if isinstance(self.reward.observation_space, gym.spaces.Discrete):
            return "States of a table are numbers without order: they have no gradients."
        return None

    def layers(self) -> dict[str, nn.Module]:
        return self.reward.layers()

    def untrained(self, seed: int) -> RewardQuestion | None:
        """Return the same question about a reward with new random weights; None if it has none."""
        fresh = self.reward.fresh(seed)
        return None if fresh is None else replace(self, reward=fresh)

    def permuted(self, seed: int, updates: int, number: int) -> RewardQuestion | None:
        """Return the same question about a network that learned the rewards, permuted among steps; None if none can.

        It has weights of ``seed`` and learns in ``updates`` gradient steps; ``number`` tells several such networks apart.
        """
        fresh: Any = self.reward.fresh(seed)
        if not isinstance(fresh, TorchReward) or not list(fresh.module.parameters()):
            return None
        rng, data = self.rng(f"permuted labels {number}"), self.data
        labels = self.reward.of(data)[rng.permutation(len(data))]
        labels = (labels - labels.mean()) / (labels.std() or 1.0)
        optimiser = Adam(list(fresh.module.requires_grad_(True).parameters()), lr=1e-3)
        for _ in range(updates):
            rows = np.sort(rng.choice(len(data), min(BATCH, len(data)), replace=False))
            error = fresh.member_tensor(*fresh.tensors(data[rows])) - torch.as_tensor(labels[rows], dtype=torch.float32)
            optimiser.zero_grad()
            error.square().mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        fresh.module.requires_grad_(False)
        return replace(self, reward=fresh)
