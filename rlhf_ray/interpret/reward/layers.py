"""Layers of a reward function: which there are, what they compute for a batch of steps, and its factors (NMF)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.directions.directions import nonnegative_factors, nonnegative_weights, some_of
from rlhf_ray.interpret.directions.stability import match
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.unmoved import passes

CHUNK = 512
"""Most steps per forward pass."""

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer of a reward function, and where the batch is in its output.

    Layers of an ensemble may put the member before the batch. Here the batch is always first, channels (units) second: units of
    all members follow each other.
    """

    name: str  # in `RewardFunction.layers`
    axis: int  # of the batch in the layer's own output
    shape: tuple[int, ...]  # (channels, *positions) of one step: (units,) or (channels, height, width)

    @property
    def channels(self) -> int:
        """Number of channels or units."""
        return self.shape[0]

    def arrange(self, output: Tensor) -> Tensor:
        """Arrange the layer's own output as ``[n, *shape]``."""
        return output.movedim(self.axis, 0).reshape(output.shape[self.axis], *self.shape)

    def run(self, reward: RewardFunction, arguments: Arguments) -> Tensor:
        """Compute this layer's activations ``[n, *shape]``, with gradients."""
        seen: list[Tensor] = []
        with hooked(reward.layers()[self.name], seen.append):
            reward.forward(*arguments)
        return self.arrange(seen[-1])

    def activations(self, reward: RewardFunction, steps: Transitions) -> FloatArray:
        """Compute the activations of ``steps``, ``[n, *shape]`` float32."""
        with torch.no_grad():
            rows = passes(len(steps), reward.observation_space, CHUNK)
            parts = [self.run(reward, reward.tensors(steps[part])).float() for part in rows]
        return np.asarray(torch.cat(parts).numpy())

    def attributions(self, reward: RewardFunction, steps: Transitions) -> FloatArray:
        """Compute gradient x activation: what each activation contributes to the reward, to first order: ``[n, *shape]``."""
        parts: list[Array] = []
        for part in passes(len(steps), reward.observation_space, CHUNK):
            leaves: list[Tensor] = []

            def leaf(output: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
                leaves.append(output.detach().requires_grad_())
                return leaves[-1]

            with hooked(reward.layers()[self.name], leaf):
                rewards = reward.forward(*reward.tensors(steps[part]))
            slope = torch.zeros_like(leaves[-1])
            if rewards.requires_grad:
                (slope,) = torch.autograd.grad(rewards.sum(), leaves[-1], materialize_grads=True)
            parts.append(self.arrange(slope * leaves[-1].detach()).float().numpy())
        return np.concatenate(parts)


def hooked(module: nn.Module, see: Callable[[Any], Tensor | None]) -> RemovableHandle:
    """Call ``see`` with each output of ``module``, in a ``with``; what it returns, if anything, replaces the output."""
    return module.register_forward_hook(lambda _module, _inputs, output: see(output))


def layers_of(reward: RewardFunction) -> dict[str, Layer]:
    """Return the layers of ``reward`` by name, in order: those that run once for each batch and return one tensor per step.

    Empty for rewards without layers (tables, plain functions).
    """
    modules, sizes = reward.layers(), (2, 3)
    if not modules or not reward.differentiable:
        return {}
    outputs: dict[str, list[Any]] = {name: [] for name in modules}
    for size in sizes:
        with ExitStack() as hooks, torch.no_grad():
            for name, module in modules.items():
                hooks.enter_context(hooked(module, outputs[name].append))
            reward.forward(*_zeros(reward, size))
    layers = {}
    for name, seen in outputs.items():
        shapes = [getattr(output, "shape", torch.Size()) for output in seen]
        if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]):
            continue  # it doesn't run, or runs several times
        axes = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if pair == sizes]
        if len(axes) == 1:
            rest = tuple(size for axis, size in enumerate(shapes[0]) if axis != axes[0])
            layers[name] = Layer(name, axes[0], (rest if axes[0] == 0 else (int(np.prod(rest)),)) or (1,))
    return layers


def hidden_layers(reward: RewardFunction) -> list[Layer]:
    """Return the layers worth looking into: after each convolution or linear layer its activation, without the final output.

    A layer that only reshapes, and a convolution or linear layer that an activation follows, are left out.
    """
    modules = reward.layers()
    hidden: list[Layer] = []
    for layer in layers_of(reward).values():
        module = modules[layer.name]
        if isinstance(module, nn.Flatten | nn.Identity | nn.Dropout):
            continue
        has_weights = next(module.parameters(recurse=False), None) is not None
        if hidden and not has_weights and hidden[-1].shape == layer.shape:
            hidden[-1] = layer  # the activation of the layer before
        elif layer.channels > 1:
            hidden.append(layer)
    space, actions = reward.observation_space, reward.action_space
    frame = np.zeros((1, *(space.shape or ())), space.dtype)
    action = np.full((1, *(actions.shape or ())), getattr(actions, "start", 0), actions.dtype)
    members = len(reward.members(frame, action, frame.copy(), np.zeros(1, bool)))
    return [layer for layer in hidden if layer.channels > max(1, members) or len(layer.shape) > 1]


def _zeros(reward: RewardFunction, size: int) -> Arguments:
    shape, space = reward.observation_space.shape or (), reward.action_space
    actions = np.zeros((size, *(space.shape or ())), np.float32)
    if isinstance(space, gym.spaces.Discrete):
        actions = np.full(size, int(space.start))
    return torch.zeros(size, *shape), reward.action_inputs(actions), torch.zeros(size, *shape), torch.zeros(size)


@dataclass(frozen=True)
class Factors:
    """A few directions in the channels of a layer, for activations ``[n, channels, *positions]``."""

    components: FloatArray  # [factors, channels]; signed: [factors, 2 * channels]: positive parts, then negative parts
    signed: bool  # whether positive and negative parts are separate channels (attributions)
    explained: float  # share of the sum of squares that the factors reproduce, of the data they were fitted to

    @property
    def directions(self) -> FloatArray:
        """Directions ``[factors, channels]`` of unit length; signed: positive minus negative part."""
        joined = np.subtract(*np.split(self.components, 2, axis=1)) if self.signed else self.components
        lengths = np.linalg.norm(joined, axis=1, keepdims=True)
        return np.asarray(joined / np.where(lengths > 0, lengths, 1.0))

    def encode(self, values: Array) -> FloatArray:
        """Return how much of each factor is in ``values`` ``[n, channels, *positions]``: ``[n, factors, *positions]``."""
        weights = nonnegative_weights(_rows(values, self.signed), self.components)
        return np.moveaxis(weights.reshape(len(values), *values.shape[2:], -1), -1, 1)


def fit_factors(values: Array, count: int, seed: int = 0, signed: bool = False) -> Factors:
    """Fit factors to activations or attributions ``[n, channels, *positions]``: ``count``, or as many as channels or rows.

    Raises:
        ValueError: not signed, and a value is below 0.
    """
    components, explained = nonnegative_factors(some_of(_rows(values, signed), seed), count, seed)
    return Factors(components, signed, explained)


def found_again(values: Array, factors: Factors, seeds: Sequence[int]) -> FloatArray:
    """Fit the factors of ``values`` again to random halves, one per seed; return mean absolute cosines, ``[factors]``."""
    cosines, count = [], len(factors.components)
    for seed in seeds:
        some = np.random.default_rng([seed, 0xFAC]).choice(len(values), max(2, round(0.5 * len(values))), replace=False)
        again = fit_factors(values[np.sort(some)], count, seed, factors.signed).components
        cosines.append(match(factors.components, again) if len(again) >= count else np.zeros(count))
    return np.asarray(np.mean(cosines, 0))


def _rows(values: Array, signed: bool) -> FloatArray:
    """Return one row per step and position, ``[n * positions, channels]`` float64; signed: positive, then negative parts.

    Channels are moved last before anything else, so that they never mix with positions.
    """
    rows = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]).astype(np.float64)
    return np.concatenate([np.maximum(rows, 0.0), np.maximum(-rows, 0.0)], 1) if signed else rows
