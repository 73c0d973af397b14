"""Two published networks for images, with the convolutions of the policy's own encoders: Nature's and IMPALA's."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
from torch import nn

from rlhf_ray.policies.encoders import convolutions, glorot
from rlhf_ray.reward.networks.cnn import CNN
from rlhf_ray.settings import RewardModelSettings


class Nature(CNN):
    """The network of Mnih et al. 2015: three convolutions and one layer of 512 units. Images of 36x36 pixels or more.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, regularisation and ensemble size.

    Raises:
        SettingError: the observations are not images, or are too small for the convolutions.
    """

    network, units = "nature", 512

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, replace(settings, hidden=(self.units,), activation="relu"))

    def convolve(self, channels: int) -> nn.Sequential:
        """See `CNN.convolve`."""
        return convolutions(self.network, channels)


class Impala(Nature):
    """The network of Espeholt et al. 2018 (15 convolutions in three blocks, with residuals) and one layer of 256 units.

    Batch normalisation and dropout are not used inside the blocks.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, regularisation and ensemble size.

    Raises:
        SettingError: the observations are not images.
    """

    network, units = "impala", 256

    def convolve(self, channels: int) -> nn.Sequential:
        """See `CNN.convolve`."""
        layers = convolutions(self.network, channels)
        glorot(layers)
        return layers
