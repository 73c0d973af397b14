"""Reward networks that read the steps before: a GRU and a causal transformer over a fragment.

The reward of a step depends on the fragment's steps up to it. `RewardEnsemble.episode_rewards` applies them to whole episodes.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.reward.networks.cnn import convolutions_of, pixels_of
from rlhf_ray.reward.networks.mlp import ACTIVATIONS, StackedLinear, VectorInputs, other_inputs
from rlhf_ray.settings import RewardModelSettings

HEADS = 4
"""Attention heads of the transformer, if they divide its units."""


class SequenceNetwork(VectorInputs):
    """A member's features of each step, what it remembers of them, and a linear output.

    See `rlhf_ray.reward.networks.RewardNetwork`. Images pass through the convolutions of a cnn first. By ``settings.network``, the
    memory is

    * gru: a layer for each but the last of ``settings.hidden``, and a GRU with as many units as the last;
    * transformer: a causal transformer with a layer for each of ``settings.hidden``, which must all have the same number of units.

    Raises:
        SettingError: the layers of a transformer have different numbers of units, or an odd one.
    """

    reads_history = True

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, settings)
        self.convolutions: nn.ModuleList | None = None
        inputs, self.image = self.inputs, is_image(observation_space)
        if self.image:
            self.convolutions, pixels, self.images_at_once = convolutions_of(observation_space, settings)
            inputs = pixels + (self.encode_action.size if settings.use_action else 0) + int(settings.use_done)
        memory = _GRU if settings.network == "gru" else _Transformer
        self.memories = nn.ModuleList(memory(inputs, settings) for _ in range(self.members))
        self.head = StackedLinear(self.members, settings.hidden[-1], 1)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` float32 and, for images, ``frames``: the observations."""
        if not self.image:
            return super().encode(observations, actions, terminated)
        features = other_inputs(self.settings, self.encode_action, actions, terminated)
        return {"features": features} if self.convolutions is None else {"features": features, "frames": observations}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        features = self.features_of(inputs)
        n, length = features.shape[:2]
        seen = [features] * self.members
        if self.convolutions is not None:
            pixels = pixels_of(self.settings, inputs["frames"])
            seen = [torch.cat([see(pixels).view(n, length, -1), features], -1) for see in self.convolutions]
        read = [memory(of_member) for memory, of_member in zip(self.memories, seen, strict=True)]
        rewards: Tensor = self.head(torch.stack(read).flatten(1, 2))
        return rewards.view(self.members, n, length)


class _GRU(nn.Module):
    def __init__(self, inputs: int, settings: RewardModelSettings):
        super().__init__()
        before: list[nn.Module] = []
        for units in settings.hidden[:-1]:
            before += _layer(inputs, units, settings)
            inputs = units
        self.before = nn.Sequential(*before)
        self.cell = nn.GRU(inputs, settings.hidden[-1], batch_first=True)
        self.after = nn.Dropout(settings.dropout)

    def forward(self, features: Tensor) -> Tensor:
        n, length = features.shape[:2]
        embedded = self.before(features.flatten(0, 1)).view(n, length, -1)
        read: Tensor = self.after(self.cell(embedded)[0])
        return read


class _Transformer(nn.Module):
    def __init__(self, inputs: int, settings: RewardModelSettings):
        super().__init__()
        units = settings.hidden[0]
        if len(set(settings.hidden)) > 1 or units % 2:
            raise SettingError(
                f"reward_model.hidden is {settings.hidden}; the layers of a transformer need one even number of units, such as "
                "(64, 64)."
            )
        self.embed = nn.Sequential(*_layer(inputs, units, settings, activate=False))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                units,
                HEADS if units % HEADS == 0 else 1,
                dim_feedforward=2 * units,
                dropout=settings.dropout,
                batch_first=True,
                norm_first=True,
            )
            for _ in settings.hidden
        )
        self.norm = nn.LayerNorm(units)

    def forward(self, features: Tensor) -> Tensor:
        n, length = features.shape[:2]
        embedded = self.embed(features.flatten(0, 1)).view(n, length, -1)
        values = embedded + positions(length, embedded.shape[-1]).to(embedded)
        mask = nn.Transformer.generate_square_subsequent_mask(length, values.device, values.dtype)
        for layer in self.layers:
            values = layer(values, src_mask=mask, is_causal=True)
        read: Tensor = self.norm(values)
        return read


def positions(length: int, units: int) -> Tensor:
    """Return the sinusoidal position encoding ``[length, units]`` (Vaswani et al. 2017); ``units`` must be even."""
    rates = torch.exp(torch.arange(0, units, 2, dtype=torch.float32) * (-math.log(10000.0) / units))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _layer(inputs: int, units: int, settings: RewardModelSettings, activate: bool = True) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Linear(inputs, units)]
    if settings.batch_norm:
        layers.append(nn.BatchNorm1d(units))
    if activate:
        layers.append(ACTIVATIONS[settings.activation]())
    if settings.dropout:
        layers.append(nn.Dropout(settings.dropout))
    return layers


def reads_history(network: Any) -> bool:
    """Return whether a network, or one inside it, declares that it reads the steps before (attribute ``reads_history``)."""
    return any(bool(getattr(module, "reads_history", False)) for module in network.modules())
