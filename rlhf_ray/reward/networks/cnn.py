"""The CNN reward network: convolutions over state and next state, then an MLP that also sees action and done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.optim.precision import in_bfloat16
from rlhf_ray.reward.networks.convolving import convolved, evaluating, images_at_once
from rlhf_ray.reward.networks.layers import ACTIVATIONS, ActionEncoder, StackedMLP, regularised
from rlhf_ray.reward.networks.mlp import other_inputs
from rlhf_ray.settings import Activation, RewardModelSettings

CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""Filters, kernel size and stride of each convolution. Kept small: on a CPU they dominate the cost of fitting."""


class CNN(nn.Module):
    """Convolutional reward network for images. See `rlhf_ray.reward.networks.RewardNetwork`.

    Subclasses change the convolutions, with `convolve`.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, layers and ensemble size.

    Raises:
        SettingError: the observations are not images, or are too small for the convolutions.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        self.members, self.settings = settings.ensemble_size, settings
        if not is_image(observation_space):
            raise SettingError(
                f"reward_model.network is {settings.network!r}, but the observations are {observation_space}, not uint8 images of "
                "height x width x channels; use 'mlp' or 'auto'."
            )
        self.encode_action = ActionEncoder(action_space)
        self.convolutions, inputs, self.images_at_once = convolutions_of(self.convolve, observation_space, settings)
        inputs += (self.encode_action.size if settings.use_action else 0) + int(settings.use_done)
        self.head = StackedMLP.of(settings, inputs)

    def convolve(self, channels: int) -> nn.Sequential:
        """Return a member's layers from images ``[n, channels, height, width]``, float, 0 to 1, to features ``[n, size]``."""
        return small_convolutions(channels, self.settings.activation)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` float32 and, if the network sees states, ``frames``: the observations."""
        parts = other_inputs(self.settings, self.encode_action, actions, terminated)
        features = torch.cat(parts, 2) if parts else torch.zeros(*actions.shape[:2], 0, device=actions.device)
        return {"features": features} if self.convolutions is None else {"features": features, "frames": observations}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        n, length = inputs["features"].shape[:2]
        features = inputs["features"].flatten(0, 1).expand(self.members, n * length, -1)
        if self.convolutions is not None:
            encoded = members_of_images(self, inputs["frames"])
            features = torch.cat([encoded, features], -1)
        rewards: Tensor = self.head(features)
        return rewards.view(self.members, n, length)


def members_of_images(network: Any, frames: Tensor) -> Tensor:
    """Return what each member's convolutions make of images: ``[members, n * length, …]`` float32.

    Args:
        network: with ``settings`` and each member's ``convolutions``.
        frames: ``[n, length + 1, height, width, channels]``, uint8 or float, 0 to 255.
    """
    if network.training:
        low = in_bfloat16(network.settings.precision, frames.device)
        return convolved(network.convolutions, images_of(network.settings, frames), bfloat16=low)
    pixels = pixels_of(network.settings, frames)
    return torch.stack([convolve(pixels) for convolve in network.convolutions])


def images_of(settings: RewardModelSettings, frames: Tensor) -> Tensor:
    """Return state, next state or both of each step, ``[n * length, channels, height, width]``, 0 to 255.

    Args:
        settings: the inputs.
        frames: ``[n, length + 1, height, width, channels]``, uint8 or float, 0 to 255.
    """
    if settings.use_state and settings.use_next_state:
        images = torch.cat([frames[:, :-1], frames[:, 1:]], -1)
    else:
        images = frames[:, :-1] if settings.use_state else frames[:, 1:]
    return images.flatten(0, 1).permute(0, 3, 1, 2)


def pixels_of(settings: RewardModelSettings, frames: Tensor) -> Tensor:
    """Return `images_of` as float32 in [0, 1]."""
    images = images_of(settings, frames)
    # In place only on a new tensor: float images are the caller's, who may want their gradients.
    return images * (1.0 / 255.0) if images.is_floating_point() else images.float().mul_(1.0 / 255.0)


def small_convolutions(channels: int, activation: Activation) -> nn.Sequential:
    """Return the layers of `CONVOLUTIONS`."""
    return plain_convolutions(channels, CONVOLUTIONS, activation)


def plain_convolutions(channels: int, shapes: Sequence[tuple[int, int, int]], activation: Activation) -> nn.Sequential:
    """Return convolutions, each with its activation, and a flattening layer.

    Args:
        channels: of the images.
        shapes: filters, kernel size and stride of each convolution.
        activation: after each.
    """
    layers: list[nn.Module] = []
    for filters, kernel, stride in shapes:
        layers += [nn.Conv2d(channels, filters, kernel, stride), ACTIVATIONS[activation]()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def convolutions_of(
    convolve: Callable[[int], nn.Sequential], space: gym.spaces.Box, settings: RewardModelSettings
) -> tuple[nn.ModuleList | None, int, int | None]:
    """Build each member's convolutions, regularised by the settings.

    Args:
        convolve: builds a member's, from the number of channels.
        space: of the images.
        settings: inputs, regularisation and ensemble size.

    Returns:
        The members' convolutions, None if no image is an input; the number of their features; and `images_at_once` of them.

    Raises:
        SettingError: the images are too small.
    """
    states = int(settings.use_state) + int(settings.use_next_state)
    if not states:
        return None, 0, None
    height, width, channels = space.shape
    image = (channels * states, height, width)
    members = nn.ModuleList(regularised(convolve(channels * states), settings) for _ in range(settings.ensemble_size))
    try:
        with evaluating(members), torch.no_grad():
            size = members[0](torch.zeros(1, *image)).shape[1]
    except RuntimeError as error:
        raise SettingError(
            f"reward_model.network is {settings.network!r}, but images of {height}x{width} pixels are too small for its "
            f"convolutions; use 'mlp'."
        ) from error
    return members, size, images_at_once(members, image)
