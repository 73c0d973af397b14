"""Reward networks for vectors: their inputs, each switched on by a setting and normalised, MLPs of them, and their layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.policies.encoders import symlog
from rlhf_ray.settings import Activation, InputNormalisation, RewardModelSettings

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
    """Multilayer perceptrons, one for each member, each with a scalar output.

    Args:
        settings: members and hidden layers.
        inputs: number of inputs.
        outputs: number of outputs; with more than one, `forward` keeps their axis.
    """

    def __init__(self, settings: RewardModelSettings, inputs: int, outputs: int = 1):
        super().__init__()
        members, layers = settings.ensemble_size, list[nn.Module]()
        for size_in, size_out in pairwise((inputs, *settings.hidden)):
            layers.append(StackedLinear(members, size_in, size_out))
            if settings.batch_norm:
                layers.append(StackedBatchNorm(members, size_out))
            layers.append(ACTIVATIONS[settings.activation]())
            if settings.dropout:
                layers.append(nn.Dropout(settings.dropout))
        self.layers = nn.Sequential(*layers, StackedLinear(members, settings.hidden[-1], outputs))
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[members, batch, inputs]`` to ``[members, batch]``; several outputs: ``[members, batch, outputs]``."""
        outputs: Tensor = self.layers(inputs)
        return outputs.squeeze(-1) if self.outputs == 1 else outputs


def regularised(convolutions: nn.Sequential, settings: RewardModelSettings) -> nn.Sequential:
    """Add batch normalisation after each convolution, and dropout after each layer that ends in an activation, by the settings.

    Inner layers of a block stay as they are.
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


LIMIT = 10.0
"""Normalised values are clipped to ± this, as is usual for policies: one outlier must not decide a reward."""
LEAST_VARIANCE = 1e-8
"""A number that varies less is only centred: in the comparisons so far, it is constant."""
DECAY = 0.9
"""Share of the earlier fits in the moving average of the statistics."""


class NormalisedInputs(nn.Module):
    """Normalises the first ``size`` columns of features. Its statistics are buffers: they are saved with the weights.

    Statistics change only in `observe`, at the start of a fit, and never between fits: a saved reward stays the same reward.

    Args:
        how: running, ema or symlog (`RewardModelSettings.normalize_inputs`).

    Attributes:
        mean, variance: ``[size]`` float32.
        fits: scalar int64: how often the statistics were updated; 0: mean 0 and variance 1.
    """

    def __init__(self, size: int, how: InputNormalisation):
        super().__init__()
        self.size, self.how = size, how
        self.mean: Tensor = nn.Buffer(torch.zeros(size))
        self.variance: Tensor = nn.Buffer(torch.ones(size))
        self.fits: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def observe(self, features: Tensor) -> None:
        """Update the statistics by the features ``[…, at least size]`` of all steps compared so far."""
        seen = self._first(features).flatten(0, -2).double()
        mean, variance = seen.mean(0), seen.var(0, correction=0)
        if self.how == "ema" and int(self.fits):
            shift = (mean - self.mean.to(mean)) ** 2
            mean = DECAY * self.mean.to(mean) + (1 - DECAY) * mean
            # Of the mixture of both, so that the variance also covers a mean that moves.
            variance = DECAY * self.variance.to(mean) + (1 - DECAY) * variance + DECAY * (1 - DECAY) * shift
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        self.fits += 1

    def forward(self, features: Tensor) -> Tensor:
        """Return ``features`` ``[…, columns]`` with the first ``size`` columns normalised."""
        scale = torch.where(self.variance > LEAST_VARIANCE, self.variance, 1.0).rsqrt()
        first = ((self._first(features) - self.mean) * scale).clamp(-LIMIT, LIMIT)
        return torch.cat([first, features[..., self.size :]], -1)

    def _first(self, features: Tensor) -> Tensor:
        """Return the columns to normalise."""
        first = features[..., : self.size]
        return symlog(first) if self.how == "symlog" else first


class VectorInputs(nn.Module):
    """What networks on vectors have in common: their inputs. Subclasses write ``forward``.

    Args:
        observation_space: Box; images are flattened and scaled to [0, 1].
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.

    Attributes:
        inputs: length of the features of a step.
        normalise: normalises the columns of `encode`'s features that are observations; None without normalisation.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        self.members, self.settings = settings.ensemble_size, settings
        self.encode_action = ActionEncoder(action_space)
        image = observation_space.dtype == np.uint8
        self.scale_observation = 1.0 / 255.0 if image else 1.0
        states = (int(settings.use_state) + int(settings.use_next_state)) * int(np.prod(observation_space.shape))
        others = (self.encode_action.size if settings.use_action else 0) + int(settings.use_done)
        self.inputs, how = states + others, settings.normalize_inputs
        self.normalise = None if image or how == "none" or not states else NormalisedInputs(states, how)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` float32."""
        vectors = observations.flatten(2).float() * self.scale_observation
        states = [vectors[:, :-1]] * self.settings.use_state + [vectors[:, 1:]] * self.settings.use_next_state
        return {"features": other_inputs(self.settings, self.encode_action, actions, terminated, *states)}

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Update the statistics of the inputs: see `rlhf_ray.reward.RewardEnsemble.observe`."""
        if self.normalise is not None:
            self.normalise.observe(inputs["features"])

    def features_of(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the features ``[n, length, inputs]``, normalised."""
        return inputs["features"] if self.normalise is None else torch.as_tensor(self.normalise(inputs["features"]))


class MLP(VectorInputs):
    """Multilayer perceptron. See `rlhf_ray.reward.networks.RewardNetwork`; arguments as for `VectorInputs`."""

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, settings)
        self.head = StackedMLP(settings, self.inputs)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        features = self.features_of(inputs).flatten(0, 1)
        rewards: Tensor = self.head(features.expand(self.members, *features.shape))
        return rewards.view(self.members, *inputs["features"].shape[:2])


class PerActionMLP(VectorInputs):
    """An MLP over states with one output per action, of which the action selects one; MultiDiscrete: the sum over components.

    See `rlhf_ray.reward.networks.RewardNetwork`; arguments as for `VectorInputs`, with ``use_action`` and discrete actions.

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
        self.head = StackedMLP(settings, self.inputs, self.encode_action.size)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` and ``selects`` ``[n, length, outputs]``: the weight of each output."""
        return super().encode(observations, actions, terminated) | {"selects": self.encode_action(actions)}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        features = self.features_of(inputs).flatten(0, 1)
        outputs: Tensor = self.head(features.expand(self.members, *features.shape))
        return torch.sum(outputs.view(self.members, *inputs["selects"].shape) * inputs["selects"], -1)


def other_inputs(
    settings: RewardModelSettings, encode_action: ActionEncoder, actions: Tensor, terminated: Tensor, *states: Tensor
) -> Tensor:
    """Return ``states`` and the other inputs, the action and whether the step terminated: ``[n, length, size]`` float32."""
    parts = [*states, torch.zeros(*actions.shape[:2], 0, dtype=torch.float32, device=actions.device)]
    if settings.use_action:
        parts.append(encode_action(actions).flatten(2))
    if settings.use_done:
        parts.append(ended(actions, terminated))
    return torch.cat(parts, 2)


def ended(actions: Tensor, terminated: Tensor) -> Tensor:
    """Return whether each step terminated, ``[n, length, 1]`` float32, of fragments whose last one did or didn't."""
    done = torch.zeros(*actions.shape[:2], 1, dtype=torch.float32, device=actions.device)
    done[:, -1, 0] = terminated.float()
    return done


def observe(network: Any, inputs: dict[str, Tensor]) -> None:
    """Let a `RewardNetwork` update the statistics of its inputs, if it keeps any, by those of all comparisons."""
    if hasattr(network, "observe"):
        network.observe(inputs)
