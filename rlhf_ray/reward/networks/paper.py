"""The reward network of Christiano et al. 2017 for Atari (appendix A.2)."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
from torch import nn

from rlhf_ray.reward.networks.cnn import CNN, plain_convolutions
from rlhf_ray.settings import RewardModelSettings

CONVOLUTIONS = ((16, 7, 3), (16, 5, 2), (16, 3, 1), (16, 3, 1))
"""Filters, kernel size and stride of each convolution."""


class PaperCNN(CNN):
    """Four convolutions, one layer of 64 units, leaky ReLUs of slope 0.01. See `rlhf_ray.reward.networks.RewardNetwork`.

    The paper's has ``batch_norm`` and ``dropout=0.5``, sees a stack of 4 grey frames of 84x84 pixels and no action
    (``use_action=False``). Inputs and regularisation stay those of the settings; images must be 43x43 pixels or more.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, regularisation and ensemble size.

    Raises:
        SettingError: the observations are not images, or are too small for the convolutions.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, replace(settings, hidden=(64,), activation="leaky_relu"))

    def convolve(self, channels: int) -> nn.Sequential:
        """See `CNN.convolve`."""
        return plain_convolutions(channels, CONVOLUTIONS, "leaky_relu")
