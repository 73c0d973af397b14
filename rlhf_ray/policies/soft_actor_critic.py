"""SoftActorCriticNetwork: actor, twin critics, their targets and the temperature of soft actor-critic (Haarnoja et al. 2018)."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.policies.encoders import TakesVectors

LOG_STD = (-5.0, 2.0)
"""Range of the Gaussian's log standard deviation, before tanh."""

FIRST_STD = 0.87
"""Standard deviation of an untrained actor's Gaussian: its tanh is nearly uniform in [-1, 1], as B-Pref's first actions are."""

CLAMPED_LOG_STD = (-20.0, 2.0)
"""The same in a policy of Stable-Baselines3, which cuts it off instead of squashing it."""

DISCRETE_ENTROPY = 0.5
"""Target entropy of Discrete actions, as a share of the maximum."""


class TwinCritics(nn.Module):
    """Two independent MLPs, computed together: one batched product per layer is faster than two."""

    def __init__(self, sizes: tuple[int, ...]):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            weight = torch.empty(2, inputs, outputs)
            for part in weight:
                nn.init.orthogonal_(part)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, outputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return both critics' outputs ``[2, n, outputs]`` for ``inputs [n, size]``."""
        values = inputs.expand(2, *inputs.shape)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            if i < last:
                values = torch.relu(values)
        return values


class SoftActorCriticNetwork(TakesVectors):
    """The networks of soft actor-critic for vector observations, with Discrete actions or Box actions within bounds.

    Box actions are tanh of a Gaussian, in [-1, 1] (`rlhf_ray.policies.actions`). For what the layers take of observations, see
    `TakesVectors`. With Discrete actions, expectations over actions are exact (Christodoulou 2019).

    Attributes:
        drawn: normal numbers that `act` draws for an action: 0 for Discrete actions.
        clamps_log_std: ``[1]``: 1 if log standard deviations are cut off at `CLAMPED_LOG_STD`, as in a policy that began in
            Stable-Baselines3; 0 if they are squashed into `LOG_STD`.

    Raises:
        SettingError: SAC doesn't support the spaces.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        hidden: tuple[int, ...],
        initial_alpha: float,
        normalize_observations: bool = False,
    ):
        super().__init__()
        if not isinstance(observation_space, gym.spaces.Box) or is_image(observation_space):
            raise SettingError(
                f"agent is 'sac', but the observations are {observation_space}; SAC takes vectors: set agent to ppo."
            )
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        if isinstance(action_space, gym.spaces.Discrete):
            actions, self.outputs = int(action_space.n), int(action_space.n)
            self.auto_entropy, self.drawn = DISCRETE_ENTROPY * math.log(max(2, actions)), 0
        elif isinstance(action_space, gym.spaces.Box) and np.isfinite([action_space.low, action_space.high]).all():
            actions = int(np.prod(action_space.shape))
            self.outputs, self.auto_entropy, self.drawn = 2 * actions, -float(actions), actions
        else:
            raise SettingError(
                f"agent is 'sac', but the actions are {action_space}; SAC takes Discrete actions, or Box actions with finite "
                "bounds (not formal ones, such as ±1e6): set agent to ppo, or declare the bounds that the environment means, with "
                "gymnasium.wrappers.TransformAction."
            )
        size = int(np.prod(observation_space.shape))
        self.take(observation_space, normalize=normalize_observations)
        self.clamps_log_std: Tensor = nn.Buffer(torch.zeros(1))
        layers: list[nn.Module] = []
        for inputs, units in pairwise((size, *hidden)):
            layers += [nn.Linear(inputs, units), nn.ReLU()]
        last = nn.Linear(hidden[-1], self.outputs)
        self.actor = nn.Sequential(*layers, last)
        for layer in self.actor:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 0.01 if layer is last else math.sqrt(2.0))
                nn.init.zeros_(layer.bias)
        if not self.discrete:
            low, high = LOG_STD
            nn.init.constant_(last.bias[actions:], math.atanh(2 * (math.log(FIRST_STD) - low) / (high - low) - 1))
        self.critics = TwinCritics((size, *hidden, actions) if self.discrete else (size + actions, *hidden, 1))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(initial_alpha)))

    def distribution(self, observations: Tensor) -> Tensor:
        """Return the action distribution's inputs ``[n, outputs]``: logits, or means and log standard deviations before tanh."""
        outputs: Tensor = self.actor(self.scaled(observations))
        if self.discrete:
            return outputs
        mean, raw = outputs.chunk(2, -1)
        return torch.cat([mean, self.log_std(raw)[0]], -1)

    def log_std(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return log standard deviations, and their derivatives, of what the actor has for them."""
        if self.clamps_log_std:
            cut = raw.clamp(*CLAMPED_LOG_STD)
            return cut, (cut == raw).to(raw.dtype)
        low, high = LOG_STD
        half, bend = 0.5 * (high - low), torch.tanh(raw)
        return low + half * (bend + 1.0), half * (1.0 - bend.square())

    def act(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return actions and their log probabilities, with gradients.

        Args:
            observations: ``[n, …]``.
            noise: standard normal ``[n, size]``; drawn if None.

        Returns:
            Box: actions ``[n, size]`` in [-1, 1] and ``[n]``. Discrete: the probabilities and log probabilities ``[n, actions]``.
        """
        outputs = self.distribution(observations)
        if self.discrete:
            logs = outputs.log_softmax(-1)
            return logs.exp(), logs
        mean, log_std = outputs.chunk(2, -1)
        return squashed(mean, log_std, torch.randn_like(mean) if noise is None else noise)

    def values(self, critics: TwinCritics, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both critics' values ``[2, n]`` of Box actions ``[n, size]``, or ``[2, n, actions]`` of all Discrete ones."""
        scaled = self.scaled(observations)
        inputs = scaled if self.discrete else torch.cat([scaled, actions.flatten(1)], -1)
        values: Tensor = critics(inputs)
        return values if self.discrete else values.squeeze(-1)

    def expected(self, values: Tensor, acted: Tensor, logs: Tensor, alpha: Tensor) -> Tensor:
        """Return the soft value ``[n]``: the lower critic's value minus α log π, of what `act` returned."""
        lower = values.min(0).values - alpha * logs
        return (acted * lower).sum(-1) if self.discrete else lower


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh of a Gaussian's numbers ``[n, size]``, and their log probabilities ``[n]``, for standard normal noise."""
    before = mean + log_std.exp() * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 - tanh(x)²), in a form that is exact for large x.
    slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
    return torch.tanh(before), (gaussian - slope).sum(-1)
