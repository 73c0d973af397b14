"""Layers of reward networks: the action encoder and linear layers batched over members."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Activation

ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "leaky_relu": partial(nn.LeakyReLU, inplace=True),
    "tanh": nn.Tanh,
}


class ActionEncoder:
    """Encodes actions as network inputs: one-hot for Discrete; for Box, scaled to [-1, 1] where bounded, else unchanged."""

    def __init__(self, space: gym.Space[object]):
        self.discrete = isinstance(space, gym.spaces.Discrete)
        if isinstance(space, gym.spaces.Discrete):
            self.size = int(space.n)
            low, scale = np.array([float(space.start)]), np.ones(1)
        elif isinstance(space, gym.spaces.Box):
            self.size = int(np.prod(space.shape))
            bounded = np.isfinite(space.low) & np.isfinite(space.high)
            lowest, highest = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 0.0)
            low = (lowest + highest) / 2.0
            scale = np.where(bounded, np.maximum(highest - lowest, 1e-8) / 2.0, 1.0)
        else:
            raise SettingError(f"The action space is {space}; reward networks support Discrete and Box actions.")
        self.low, self.scale = torch.as_tensor(low, dtype=torch.float32), torch.as_tensor(scale, dtype=torch.float32)

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions ``[..., *action_shape]`` as ``[..., size]`` float32. One-hot floats ``[..., size]`` stay as they are."""
        if self.discrete and actions.is_floating_point():
            return actions
        if self.discrete:
            return nn.functional.one_hot((actions - int(self.low)).long(), self.size).float()
        return (actions.float() - self.low.to(actions.device)) / self.scale.to(actions.device)


class StackedLinear(nn.Module):
    """``members`` linear layers, computed as one batched product."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, inputs]`` to ``[members, batch, outputs]``."""
        members, _, outputs = self.weight.shape
        if outputs == 1 and members > 1:
            # A loop: on a CPU, a batched product with one output column takes three times as long.
            layers = zip(self.bias.unbind(), inputs.unbind(), self.weight.unbind(), strict=True)
            return torch.stack([torch.addmm(*layer) for layer in layers])
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedMLP(nn.Module):
    """``members`` multilayer perceptrons, each with a scalar output."""

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], activation: Activation):
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in zip((inputs, *hidden), hidden, strict=False):
            layers += [StackedLinear(members, size_in, size_out), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, StackedLinear(members, hidden[-1], 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, inputs]`` to ``[members, batch]``."""
        outputs: Tensor = self.layers(inputs)
        return outputs.squeeze(-1)
