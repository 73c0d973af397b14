"""The MLP reward network over state, action, next state and done, each switched on by a setting."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.reward.networks.layers import ActionEncoder, StackedMLP
from rlhf_ray.reward.networks.normalised import normaliser
from rlhf_ray.settings import RewardModelSettings


class VectorInputs(nn.Module):
    """What networks on vectors have in common: their inputs. Subclasses write ``forward``.

    Args:
        observation_space: Box; images are flattened and scaled to [0, 1].
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs and their normalisation.

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
        self.inputs = states + others
        self.normalise = normaliser(states, "none" if image else settings.normalize_inputs)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` float32."""
        n, length = actions.shape[:2]
        vectors = observations.flatten(2).float() * self.scale_observation
        parts = []
        if self.settings.use_state:
            parts.append(vectors[:, :-1])
        if self.settings.use_next_state:
            parts.append(vectors[:, 1:])
        parts += other_inputs(self.settings, self.encode_action, actions, terminated)
        return {"features": torch.cat(parts, 2) if parts else vectors.new_zeros((n, length, 0))}

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Update the statistics of the inputs: see `rlhf_ray.reward.RewardEnsemble.observe`."""
        if self.normalise is not None:
            self.normalise.observe(inputs["features"])

    def features_of(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the features ``[n, length, inputs]``, normalised."""
        return inputs["features"] if self.normalise is None else torch.as_tensor(self.normalise(inputs["features"]))


class MLP(VectorInputs):
    """Multilayer perceptron. See `rlhf_ray.reward.networks.RewardNetwork`.

    Args:
        observation_space: Box; images are flattened and scaled to [0, 1].
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        settings: inputs, layers and ensemble size.
    """

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


def other_inputs(
    settings: RewardModelSettings, encode_action: ActionEncoder, actions: Tensor, terminated: Tensor
) -> list[Tensor]:
    """Return the inputs besides observations, each ``[n, length, size]`` float32: the action, and whether the step terminated."""
    parts = []
    if settings.use_action:
        parts.append(encode_action(actions).flatten(2))
    if settings.use_done:
        done = torch.zeros(*actions.shape[:2], 1, device=actions.device)
        done[:, -1, 0] = terminated.float()
        parts.append(done)
    return parts
