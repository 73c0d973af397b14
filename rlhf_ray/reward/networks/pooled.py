"""The pooled CNN: 3x3 convolutions that keep the image's size, their average over the image, and one output per action.

As imitation's ``CnnRewardNet``. It takes images of any size, and its last convolution says where in the image the reward comes
from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.reward.networks.cnn import members_of_images
from rlhf_ray.reward.networks.convolving import images_at_once
from rlhf_ray.reward.networks.layers import ACTIVATIONS, ActionEncoder, ImageMean, regularised
from rlhf_ray.settings import RewardModelSettings


class PooledCNN(nn.Module):
    """Convolutional reward network for images. See `rlhf_ray.reward.networks.RewardNetwork`.

    The action does not enter the convolutions: it selects one of their outputs. With ``use_done``, there are twice as many outputs.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete or MultiDiscrete, if the action is an input.
        settings: inputs, convolutions and ensemble size.

    Raises:
        SettingError: the observations are not images, no image is an input, or the action is one and not discrete.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        self.settings = settings
        if not is_image(observation_space):
            raise SettingError(
                f"reward_model.network is {settings.network!r}, but the observations are {observation_space}, not uint8 images of "
                "height x width x channels; use 'mlp' or 'auto'."
            )
        states = int(settings.use_state) + int(settings.use_next_state)
        if not states:
            raise SettingError(
                f"reward_model.network is {settings.network!r}, which needs an image: enable use_state or use_next_state."
            )
        self.encode_action = ActionEncoder(action_space) if settings.use_action else None
        if self.encode_action is not None and not self.encode_action.discrete:
            raise SettingError(
                f"reward_model.network is {settings.network!r}, which has one output per action, but the actions are "
                f"{action_space}: use 'cnn', or turn use_action off."
            )
        outputs = (1 if self.encode_action is None else self.encode_action.size) * (1 + int(settings.use_done))
        channels = states * observation_space.shape[2]
        height, width = observation_space.shape[:2]
        self.convolutions = nn.ModuleList(_member(channels, outputs, settings) for _ in range(settings.ensemble_size))
        self.images_at_once = images_at_once(self.convolutions, (channels, height, width))

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``frames``, the observations, and ``selects`` ``[n, length, outputs]`` float32: the weight of each output."""
        selects = torch.ones(*actions.shape[:2], 1, device=actions.device)
        if self.encode_action is not None:
            selects = self.encode_action(actions)
        if self.settings.use_done:
            done = torch.zeros(*actions.shape[:2], 1, device=actions.device)
            done[:, -1, 0] = terminated.float()
            selects = torch.cat([selects * (1 - done), selects * done], -1)
        return {"frames": observations, "selects": selects}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        outputs = members_of_images(self, inputs["frames"])
        rewards: Tensor = (outputs * inputs["selects"].flatten(0, 1)).sum(-1)
        return rewards.view(-1, *inputs["selects"].shape[:2])


def _member(channels: int, outputs: int, settings: RewardModelSettings) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, filters in enumerate(settings.convolutions, 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"act{number}"] = ACTIVATIONS[settings.activation]()
        channels = filters
    layers |= {"pool": ImageMean(), "flatten": nn.Flatten(), "dense": nn.Linear(channels, outputs)}
    return regularised(nn.Sequential(layers), settings)


def _preset(*filters: int) -> Callable[..., PooledCNN]:
    def make(
        observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ) -> PooledCNN:
        return PooledCNN(observation_space, action_space, replace(settings, convolutions=filters))

    return make


PRESETS: Mapping[str, Callable[..., PooledCNN]] = {
    "small_cnn": _preset(32, 64),
    "large_cnn": _preset(96, 256, 384, 384, 256),
    "very_large_cnn": _preset(*5 * (16,), *10 * (32,)),
}
"""Pooled CNNs with fixed convolutions, by the names in `RewardModelSettings.network`."""
