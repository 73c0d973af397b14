"""Reward networks: every member of an ensemble at once, over state, action, next state and done."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Activation, RewardModelSettings

CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""Filters, kernel size and stride of each convolution of the cnn. Small on purpose: on a CPU reward fitting is bound by them."""

_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "leaky_relu": partial(nn.LeakyReLU, inplace=True),
    "tanh": nn.Tanh,
}


class ActionEncoder(nn.Module):
    """Actions as network inputs: one-hot for Discrete; for Box scaled to [-1, 1] where bounded, else unchanged."""

    low: Tensor
    scale: Tensor

    def __init__(self, space: gym.Space[object]):
        super().__init__()
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
            raise SettingError(f"The action space is {space}; rewards are learned for Discrete and Box actions.")
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        """Encode actions ``[..., *action_shape]``: the result is ``[..., size]`` float32."""
        if self.discrete:
            return nn.functional.one_hot((actions - int(self.low)).long(), self.size).float()
        return (actions.float() - self.low) / self.scale


class StackedLinear(nn.Module):
    """``members`` linear layers as one batched product."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # as torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """``[members, batch, inputs]`` to ``[members, batch, outputs]``."""
        members, _, outputs = self.weight.shape
        if outputs == 1 and members > 1:
            # One after the other: on a CPU a batched product of a single column takes three times as long.
            layers = zip(self.bias.unbind(), inputs.unbind(), self.weight.unbind(), strict=True)
            return torch.stack([torch.addmm(*layer) for layer in layers])
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedMLP(nn.Module):
    """``members`` multilayer perceptrons with a scalar output each."""

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], activation: Activation):
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in zip((inputs, *hidden), hidden, strict=False):
            layers += [StackedLinear(members, size_in, size_out), _ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, StackedLinear(members, hidden[-1], 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """``[members, batch, inputs]`` to ``[members, batch]``."""
        outputs: Tensor = self.layers(inputs)
        return outputs.squeeze(-1)


class RewardNetworks(nn.Module):
    """``ensemble_size`` networks that give each step a reward. Their inputs are what ``settings`` switches on.

    Args:
        observation_space: Box of rank 1, or a uint8 image Box (height, width, channels).
        action_space: Discrete or Box.
        settings: which network, which inputs, how many members.

    Raises:
        SettingError: the network does not fit the observations.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        members = settings.ensemble_size
        self.settings = settings
        self.members = members
        image = observation_space.dtype == np.uint8 and len(observation_space.shape) == 3
        self.image = settings.network == "cnn" or (settings.network == "auto" and image)
        if self.image and not image:
            raise SettingError(
                f"reward_model.network is 'cnn', and the observations are {observation_space}, no uint8 images of height x width "
                "x channels; use 'mlp' or 'auto'."
            )
        self.encode_action = ActionEncoder(action_space)
        vector = (self.encode_action.size if settings.use_action else 0) + int(settings.use_done)
        states = int(settings.use_state) + int(settings.use_next_state)
        self.convolutions: nn.ModuleList | None = None
        if self.image and states:
            height, width, channels = observation_space.shape
            self.convolutions = nn.ModuleList(
                _convolutions(channels * states, settings.activation) for _ in range(members)
            )
            try:
                with torch.no_grad():
                    flat = self.convolutions[0](torch.zeros(1, channels * states, height, width)).shape[1]
            except RuntimeError as error:
                raise SettingError(
                    f"reward_model.network is 'cnn', and images of {height}x{width} pixels are too small for its convolutions "
                    f"(filters, kernel, stride: {CONVOLUTIONS}); use 'mlp'."
                ) from error
            vector += flat
        elif not self.image:
            vector += states * int(np.prod(observation_space.shape))
        self.head = StackedMLP(members, vector, settings.hidden, settings.activation)
        self.scale_observation = 1.0 / 255.0 if observation_space.dtype == np.uint8 else 1.0

    def move_weights(self, device: torch.device) -> None:
        """Move what is fitted to ``device``, where `forward` then has to be given its inputs; `features` are made on the CPU."""
        self.head.to(device)
        if self.convolutions is not None:
            self.convolutions.to(device)

    def features(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """The inputs of the mlp, ``[batch, inputs]`` float32; they depend on no weight, so that a fit makes them once."""
        parts = []
        if not self.image:
            if self.settings.use_state:
                parts.append(self._vector(observations))
            if self.settings.use_next_state:
                parts.append(self._vector(next_observations))
        if self.settings.use_action:
            parts.append(self.encode_action(actions).flatten(1))
        if self.settings.use_done:
            parts.append(terminated.float().unsqueeze(1))
        return torch.cat(parts, 1) if parts else observations.new_zeros((len(observations), 0), dtype=torch.float32)

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        """Reward of each step for each member, ``[members, batch]``.

        Args:
            features: ``[batch, inputs]`` float32, from `features`.
            images: ``[batch, height, width, channels]`` uint8, from `images`; None for the mlp.
        """
        if self.convolutions is None or images is None:
            return self.head(features.expand(self.members, *features.shape))  # type: ignore[no-any-return]
        pixels = images.permute(0, 3, 1, 2).float().mul_(1.0 / 255.0)
        encoded = torch.stack([convolve(pixels) for convolve in self.convolutions])
        return self.head(torch.cat([encoded, features.expand(self.members, *features.shape)], -1))  # type: ignore[no-any-return]

    def images(self, observations: Tensor, next_observations: Tensor) -> Tensor | None:
        """The images the cnn sees, channels joined, ``[batch, height, width, channels]`` uint8; None for the mlp."""
        if self.convolutions is None:
            return None
        if self.settings.use_state and self.settings.use_next_state:
            return torch.cat([observations, next_observations], -1)
        return observations if self.settings.use_state else next_observations

    def _vector(self, observations: Tensor) -> Tensor:
        return observations.flatten(1).float() * self.scale_observation


def _convolutions(channels: int, activation: Activation) -> nn.Sequential:
    layers: list[nn.Module] = []
    for filters, kernel, stride in CONVOLUTIONS:
        layers += [nn.Conv2d(channels, filters, kernel, stride), _ACTIVATIONS[activation]()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())
