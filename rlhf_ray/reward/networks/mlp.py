"""Reward networks for vectors: their inputs, each switched on by a setting and normalised, and MLPs of them."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.networks.layers import ActionEncoder, StackedMLP
from rlhf_ray.settings import InputNormalisation, RewardModelSettings

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
        size: number of columns.
        how: running, ema or symlog (`RewardModelSettings.normalize_inputs`).

    Attributes:
        mean, variance: ``[size]`` float32.
        fits: scalar int64: how often the statistics were updated; 0: mean 0 and variance 1.
    """

    mean: Tensor
    variance: Tensor
    fits: Tensor

    def __init__(self, size: int, how: InputNormalisation):
        super().__init__()
        self.size, self.how = size, how
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("fits", torch.zeros((), dtype=torch.int64))

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
        return first.sign() * first.abs().log1p() if self.how == "symlog" else first


class VectorInputs(nn.Module):
    """What networks on vectors have in common: their inputs. Subclasses write ``forward``.

    Args:
        observation_space: Box; images are flattened and scaled to [0, 1].
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, their normalisation, layers and ensemble size.

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
        self.head = StackedMLP.of(settings, self.inputs)

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
        self.head = StackedMLP.of(settings, self.inputs, self.encode_action.size)

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
    parts = [*states, torch.zeros(*actions.shape[:2], 0, device=actions.device)]
    if settings.use_action:
        parts.append(encode_action(actions).flatten(2))
    if settings.use_done:
        parts.append(ended(actions, terminated))
    return torch.cat(parts, 2)


def ended(actions: Tensor, terminated: Tensor) -> Tensor:
    """Return whether each step terminated, ``[n, length, 1]`` float32, of fragments whose last one did or didn't."""
    done = torch.zeros(*actions.shape[:2], 1, device=actions.device)
    done[:, -1, 0] = terminated.float()
    return done
