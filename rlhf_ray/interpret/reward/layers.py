"""Layers of a reward function: which there are, and what they compute for a batch of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.passes import passes

CHUNK = 512
"""Most steps per forward pass."""

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer of a reward function, and where the batch is in its output.

    Layers of an ensemble may put the member before the batch. Here the batch is always first, channels (units) second: units of
    all members follow each other.

    Attributes:
        name: name in `RewardFunction.layers`.
        axis: axis of the batch in the layer's own output.
        shape: ``(channels, *positions)`` of one step: ``(units,)`` for a vector, ``(channels, height, width)`` for an image.
    """

    name: str
    axis: int
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Number of channels or units."""
        return self.shape[0]

    def arrange(self, output: Tensor) -> Tensor:
        """Arrange the layer's own output as ``[n, *shape]``."""
        return output.movedim(self.axis, 0).reshape(output.shape[self.axis], *self.shape)

    def restore(self, activations: Tensor, like: Tensor) -> Tensor:
        """Undo `arrange`: return ``activations`` in the shape of the output ``like``."""
        return activations.reshape(like.movedim(self.axis, 0).shape).movedim(0, self.axis)

    def module(self, reward: RewardFunction) -> nn.Module:
        """Return the layer's module in ``reward``.

        Raises:
            SettingError: ``reward`` has no such layer.
        """
        layers = reward.layers()
        if self.name not in layers:
            raise SettingError(f"The reward {reward.name!r} has no layer {self.name!r}; it has {', '.join(layers)}.")
        return layers[self.name]

    def run(self, reward: RewardFunction, arguments: Arguments) -> tuple[Tensor, Tensor]:
        """Compute rewards ``[n]`` and this layer's activations ``[n, *shape]`` in one pass, with gradients."""
        seen: list[Tensor] = []
        with hooked(self.module(reward), lambda output: seen.append(output)):
            rewards = reward.forward(*arguments)
        return rewards, self.arrange(seen[-1])

    def activations(self, reward: RewardFunction, steps: Transitions) -> FloatArray:
        """Compute the activations of ``steps``, ``[n, *shape]`` float32."""
        parts = []
        with torch.no_grad():
            for part in passes(len(steps), reward.observation_space, CHUNK):
                parts.append(self.run(reward, reward.tensors(steps[part]))[1].float())
        values: FloatArray = torch.cat(parts).numpy()
        return values

    def attributions(self, reward: RewardFunction, steps: Transitions) -> FloatArray:
        """Compute gradient x activation: what each activation contributes to the reward, to first order: ``[n, *shape]``."""
        parts: list[Array] = []
        for part in passes(len(steps), reward.observation_space, CHUNK):
            leaves: list[Tensor] = []

            def leaf(output: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
                leaves.append(output.detach().requires_grad_())
                return leaves[-1]

            with hooked(self.module(reward), leaf):
                rewards = reward.forward(*reward.tensors(steps[part]))
            if rewards.requires_grad:
                (slope,) = torch.autograd.grad(rewards.sum(), leaves[-1], allow_unused=True)
            else:
                slope = None
            slope = torch.zeros_like(leaves[-1]) if slope is None else slope
            parts.append(self.arrange(slope * leaves[-1].detach()).float().numpy())
        return np.concatenate(parts)


@contextmanager
def hooked(module: nn.Module, see: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Call ``see`` with each output of ``module``; what it returns, if anything, replaces the output."""
    handle = module.register_forward_hook(lambda _module, _inputs, output: see(output))
    try:
        yield
    finally:
        handle.remove()


def layers_of(reward: RewardFunction) -> dict[str, Layer]:
    """Return the layers of ``reward`` by name, in order: those that run once for each batch and return one tensor per step.

    Empty for rewards without layers (tables, plain functions).
    """
    modules = reward.layers()
    if not modules or not reward.differentiable:
        return {}
    sizes = (2, 3)
    outputs: dict[str, list[torch.Size]] = {name: [] for name in modules}
    for size in sizes:
        handles = [
            module.register_forward_hook(
                lambda _module, _inputs, output, name=name: outputs[name].append(getattr(output, "shape", torch.Size()))
            )
            for name, module in modules.items()
        ]
        try:
            with torch.no_grad():
                reward.forward(*_zeros(reward, size))
        finally:
            for handle in handles:
                handle.remove()
    layers = {}
    for name, shapes in outputs.items():
        if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]):
            continue  # it doesn't run, or runs several times
        axes = [axis for axis, pair in enumerate(zip(*shapes, strict=True)) if pair == sizes]
        if len(axes) != 1:
            continue
        rest = tuple(size for axis, size in enumerate(shapes[0]) if axis != axes[0])
        shape = rest if axes[0] == 0 else (int(np.prod(rest)),)
        layers[name] = Layer(name, axes[0], shape or (1,))
    return layers


def hidden_layers(reward: RewardFunction) -> list[Layer]:
    """Return the layers worth looking into: after each convolution or linear layer its activation, without the final output.

    A layer that only reshapes, and a convolution or linear layer that an activation follows, are left out.
    """
    all_layers, modules = layers_of(reward), reward.layers()
    hidden: list[Layer] = []
    for layer in all_layers.values():
        module = modules[layer.name]
        if isinstance(module, nn.Flatten | nn.Identity | nn.Dropout):
            continue
        has_weights = next(module.parameters(recurse=False), None) is not None
        if hidden and not has_weights and hidden[-1].shape == layer.shape:
            hidden[-1] = layer  # the activation of the layer before
        elif layer.channels > 1:
            hidden.append(layer)
    members = max(1, int(reward.members(*_example(reward)).shape[0]))
    return [layer for layer in hidden if layer.channels > members or len(layer.shape) > 1]


def _zeros(reward: RewardFunction, size: int) -> Arguments:
    shape = reward.observation_space.shape or ()
    discrete = isinstance(reward.action_space, gym.spaces.Discrete)
    start = int(getattr(reward.action_space, "start", 0))
    actions = np.full(size, start) if discrete else np.zeros((size, *(reward.action_space.shape or ())), np.float32)
    return torch.zeros(size, *shape), reward.action_inputs(actions), torch.zeros(size, *shape), torch.zeros(size)


def _example(reward: RewardFunction) -> tuple[Array, Array, Array, Array]:
    space, actions = reward.observation_space, reward.action_space
    frame = np.zeros((1, *(space.shape or ())), space.dtype)
    action = np.full((1, *(actions.shape or ())), getattr(actions, "start", 0), actions.dtype)
    return frame, action, frame.copy(), np.zeros(1, bool)
