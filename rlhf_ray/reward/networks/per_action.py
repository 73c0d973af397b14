"""The per-action network: an MLP over states with one output per action, of which the action selects one."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import torch
from torch import Tensor

from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.networks.layers import ActionEncoder, StackedMLP
from rlhf_ray.reward.networks.mlp import VectorInputs
from rlhf_ray.settings import RewardModelSettings


class PerActionMLP(VectorInputs):
    """An MLP with one output per action. See `rlhf_ray.reward.networks.RewardNetwork`.

    For MultiDiscrete actions, the reward is the sum of the outputs that the components select.

    Args:
        observation_space: Box; images are flattened and scaled to [0, 1].
        action_space: Discrete or MultiDiscrete.
        settings: inputs, layers and ensemble size; ``use_action`` must be on.

    Raises:
        SettingError: the actions are not discrete, or no input.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, replace(settings, use_action=False))
        if not settings.use_action or not self.encode_action.discrete:
            raise SettingError(
                f"reward_model.network is {settings.network!r}, which has one output per action, but the actions are "
                f"{action_space} and use_action is {settings.use_action}: use 'mlp', or discrete actions with use_action."
            )
        self.select = ActionEncoder(action_space)
        self.head = StackedMLP.of(settings, self.inputs, self.select.size)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` and ``selects`` ``[n, length, outputs]``: the weight of each output."""
        return super().encode(observations, actions, terminated) | {"selects": self.select(actions)}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        features = self.features_of(inputs).flatten(0, 1)
        outputs: Tensor = self.head(features.expand(self.members, *features.shape))
        shape = (self.members, *inputs["selects"].shape)
        return torch.sum(outputs.view(shape) * inputs["selects"], -1)
