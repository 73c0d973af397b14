"""Layers of reward networks: the action encoder, linear layers batched over members, batch normalisation and dropout."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.settings import Activation, RewardModelSettings

ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "leaky_relu": partial(nn.LeakyReLU, inplace=True),
    "tanh": nn.Tanh,
}


class ActionEncoder:
    """Encodes actions as network inputs.

    One-hot for Discrete; one-hot of each component, one after the other, for MultiDiscrete; unchanged for MultiBinary; for Box,
    scaled to [-1, 1] where bounded, else unchanged.

    Attributes:
        size: length of an encoded action.
        choices: number of values of each component of a discrete action; empty for others.
        discrete: whether there are choices.
    """

    def __init__(self, space: gym.Space[object]):
        self.choices = choices_of(space)
        if isinstance(space, gym.spaces.Discrete):
            low, scale = np.array([float(space.start)]), np.ones(1)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            low, scale = space.start.flatten().astype(np.float64), np.ones(1)
        elif isinstance(space, gym.spaces.MultiBinary):
            self.size = int(np.prod(space.shape))
            low, scale = np.zeros(1), np.ones(1)
        elif isinstance(space, gym.spaces.Box):
            self.size = int(np.prod(space.shape))
            bounded = np.isfinite(space.low) & np.isfinite(space.high)
            lowest, highest = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 0.0)
            low = (lowest + highest) / 2.0
            scale = np.where(bounded, np.maximum(highest - lowest, 1e-8) / 2.0, 1.0)
        else:
            raise SettingError(
                f"The action space is {space}; reward networks support Discrete, MultiDiscrete, MultiBinary and Box actions."
            )
        self.discrete = bool(self.choices)
        if self.discrete:
            self.size = sum(self.choices)
        self._rank = len(space.shape or ())
        self.low, self.scale = torch.as_tensor(low, dtype=torch.float32), torch.as_tensor(scale, dtype=torch.float32)

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions ``[..., *action_shape]`` as ``[..., size]`` float32. One-hot floats ``[..., size]`` stay as they are."""
        if self.discrete and actions.is_floating_point():
            return actions
        if self.discrete:
            values = actions.flatten(-self._rank) if self._rank else actions.unsqueeze(-1)
            values = (values - self.low.to(actions.device)).long()
            parts = [nn.functional.one_hot(values[..., i], n) for i, n in enumerate(self.choices)]
            return torch.cat(parts, -1).float()
        return (actions.float() - self.low.to(actions.device)) / self.scale.to(actions.device)


class StackedLinear(nn.Module):
    """``members`` linear layers, computed as one batched product."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # as torch.nn.Linear
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(members, inputs, outputs), -bound, bound))
        self.bias = nn.Parameter(nn.init.uniform_(torch.empty(members, 1, outputs), -bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, inputs]`` to ``[members, batch, outputs]``."""
        members, _, outputs = self.weight.shape
        if outputs == 1 and members > 1:
            # A loop: on a CPU, a batched product with one output column takes three times as long.
            layers = zip(self.bias.unbind(), inputs.unbind(), self.weight.unbind(), strict=True)
            return torch.stack([torch.addmm(*layer) for layer in layers])
        return torch.baddbmm(self.bias, inputs, self.weight)


class ImageMean(nn.Module):
    """Each channel's mean over the image.

    Unlike those of ``nn.AdaptiveAvgPool2d(1)``, gradients keep the channels-last layout, in which the layers before are faster.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Map ``[n, channels, height, width]`` to ``[n, channels, 1, 1]`` float32."""
        pixels = values.permute(0, 2, 3, 1).flatten(1, 2)
        return (pixels.sum(1, dtype=torch.float32) / pixels.shape[1])[..., None, None]


class StackedBatchNorm(nn.Module):
    """Batch normalisation of each member's units by themselves."""

    def __init__(self, members: int, units: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(members * units)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, units]`` to the same shape."""
        members, batch, units = inputs.shape
        flat = self.norm(inputs.transpose(0, 1).reshape(batch, members * units))
        return torch.as_tensor(flat).view(batch, members, units).transpose(0, 1)


class StackedMLP(nn.Module):
    """``members`` multilayer perceptrons, each with a scalar output.

    Args:
        members: ensemble size.
        inputs: size of an input.
        hidden: units of each hidden layer.
        activation: of the hidden layers.
        dropout: probability that a fit drops a hidden unit.
        batch_norm: whether hidden layers are normalised over the batch.
        outputs: number of outputs; with more than one, `forward` keeps their axis.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        activation: Activation,
        *,
        dropout: float = 0.0,
        batch_norm: bool = False,
        outputs: int = 1,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in zip((inputs, *hidden), hidden, strict=False):
            layers.append(StackedLinear(members, size_in, size_out))
            if batch_norm:
                layers.append(StackedBatchNorm(members, size_out))
            layers.append(ACTIVATIONS[activation]())
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, StackedLinear(members, hidden[-1], outputs))
        self.outputs = outputs

    @classmethod
    def of(cls, settings: RewardModelSettings, inputs: int, outputs: int = 1) -> StackedMLP:
        """Build the layers that the settings describe, for ``inputs`` numbers."""
        return cls(
            settings.ensemble_size,
            inputs,
            settings.hidden,
            settings.activation,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            outputs=outputs,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, inputs]`` to ``[members, batch]``; several outputs: ``[members, batch, outputs]``."""
        outputs: Tensor = self.layers(inputs)
        return outputs.squeeze(-1) if self.outputs == 1 else outputs


def regularised(convolutions: nn.Sequential, settings: RewardModelSettings) -> nn.Sequential:
    """Add batch normalisation after each convolution, and dropout after each layer that ends in an activation, by the settings.

    Args:
        convolutions: the layers, named or numbered; inner layers of a block stay as they are.
        settings: ``batch_norm`` and ``dropout``; without both, the layers are returned as they are.
    """
    if not settings.batch_norm and not settings.dropout:
        return convolutions
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in convolutions.named_children():
        layers[name] = layer
        if isinstance(layer, nn.Conv2d):
            if settings.batch_norm:
                layers[f"{name}_norm"] = nn.BatchNorm2d(layer.out_channels)
        elif settings.dropout and not list(layer.parameters()) and not isinstance(layer, nn.Flatten | ImageMean):
            layers[f"{name}_dropout"] = nn.Dropout(settings.dropout)
    return nn.Sequential(layers)
