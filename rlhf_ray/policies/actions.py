"""Actions of policies: their distributions from a network's outputs, and their conversion to the environment's.

A network's outputs are logits of discrete actions, or means and log standard deviations of Box actions. A MultiDiscrete action
has independent components; their logits come one after the other.

A policy acts in [-1, 1] where a component of the action has two finite bounds. Its env runners scale and clip it for the
environment, and keep the unscaled one in episodes and batches. Where a component has one bound, or none, the policy's action is
the environment's, clipped to that bound. Fragments and reward models use the environment's actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.spaces import choices_of, within


def best(logits: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the most likely policy actions: ``[n]`` int64, ``[n, components]`` for MultiDiscrete, or means ``[n, size]``."""
    if choices := choices_of(space):
        return _joined([part.argmax(-1) for part in _split(logits, choices)], space)
    return logits.chunk(2, -1)[0]


def sample(logits: Tensor, space: gym.Space[Any], generator: torch.Generator) -> Tensor:
    """Draw policy actions, shaped like those of `best`."""
    if choices := choices_of(space):
        noisy = logits + gumbel_noise(logits.shape, generator)
        return _joined([part.argmax(-1) for part in _split(noisy, choices)], space)
    mean, log_std = logits.chunk(2, -1)
    return mean + log_std.exp() * torch.randn(mean.shape, generator=generator)


def gumbel_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard Gumbel noise: the arg max of logits plus noise is a sample."""
    # An exponential variate is positive; the least that float32 draws, 0, would be infinite.
    exponential = torch.empty(tuple(shape)).exponential_(generator=generator)
    return -torch.log(exponential.clamp_min(1e-20))


def log_probability(logits: Tensor, actions: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the log probability (density) ``[n]`` of policy actions."""
    if choices := choices_of(space):
        index = actions.long().reshape(*logits.shape[:-1], len(choices))
        parts = [part.log_softmax(-1) for part in _split(logits, choices)]
        return torch.stack([part.gather(-1, index[..., i, None]).squeeze(-1) for i, part in enumerate(parts)]).sum(0)
    mean, log_std = logits.chunk(2, -1)
    return (-0.5 * ((actions - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def entropy(logits: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the entropy ``[n]`` in nats."""
    if choices := choices_of(space):
        parts = [part.log_softmax(-1) for part in _split(logits, choices)]
        return torch.stack([-(part.exp() * part).sum(-1) for part in parts]).sum(0)
    return (logits.chunk(2, -1)[1] + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)


def _split(logits: Tensor, choices: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.split(logits, list(choices), -1)


def _joined(components: list[Tensor], space: gym.Space[Any]) -> Tensor:
    return components[0] if isinstance(space, gym.spaces.Discrete) else torch.stack(components, -1)


class ToEnvActions:
    """Converts a policy's actions ``[..., *action_shape]`` to those that the environment gets: int64, or float32 in the bounds.

    Args:
        space: of the actions.
    """

    def __init__(self, space: gym.Space[Any]):
        self.box = isinstance(space, gym.spaces.Box)
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = within(space)
            scaled = two_bounds(space)
            self.scaled: BoolArray | bool = scaled if scaled.any() and not scaled.all() else bool(scaled.any())
            self.start = np.where(scaled, self.low, np.float32(-1.0))
            self.width = np.where(scaled, self.high, np.float32(1.0)) - self.start

    def __call__(self, actions: Array) -> Array:
        """Return the environment's actions, in an array of their own."""
        if not self.box:
            return np.array(actions, dtype=np.int64)
        if self.scaled is not False:
            within_bounds = self.start + (np.asarray(actions) + 1.0) * self.width / 2.0
            actions = within_bounds if self.scaled is True else np.where(self.scaled, within_bounds, actions)
        return np.minimum(np.maximum(actions, self.low), self.high).astype(np.float32)


def to_env_actions(actions: Array, space: gym.Space[Any]) -> Array:
    """Return what `ToEnvActions` makes of a policy's actions."""
    return ToEnvActions(space)(actions)


def to_policy_actions(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert the environment's actions ``[..., *action_shape]`` to policy actions: the inverse of `to_env_actions`."""
    if not isinstance(space, gym.spaces.Box):
        return to_env_actions(actions, space)
    low, high = within(space)
    clipped = np.clip(np.asarray(actions, dtype=np.float32), low, high)
    scaled = two_bounds(space)
    start, end = np.where(scaled, low, -1.0), np.where(scaled, high, 1.0)
    policys: Array = np.where(scaled, (clipped - start) / np.maximum(end - start, 1e-8) * 2.0 - 1.0, clipped)
    return policys.astype(np.float32)


def to_env_actions_tensor(actions: torch.Tensor, space: gym.Space[Any]) -> torch.Tensor:
    """Convert actions like `to_env_actions`, for tensors: integers become int64, as in fragments."""
    if not isinstance(space, gym.spaces.Box):
        return actions.long()
    low, high, scaled = (torch.as_tensor(part, device=actions.device) for part in (*within(space), two_bounds(space)))
    if scaled.all():
        actions = low + (actions + 1.0) * (high - low) / 2.0
    elif scaled.any():
        start, end = torch.where(scaled, low, -1.0), torch.where(scaled, high, 1.0)
        actions = torch.where(scaled, start + (actions + 1.0) * (end - start) / 2.0, actions)
    return actions.clamp(low, high)


def two_bounds(space: gym.spaces.Box) -> BoolArray:
    """Return which components of an action have two finite bounds, so that a policy's are in [-1, 1]; of the space's shape."""
    both: BoolArray = space.bounded_below & space.bounded_above
    return both


def policy_bounds(space: gym.spaces.Box) -> tuple[FloatArray, FloatArray]:
    """Return the lowest and highest policy action that changes the environment's, float32, of the space's shape."""
    low, high = within(space)
    scaled = two_bounds(space)
    return np.where(scaled, np.float32(-1.0), low), np.where(scaled, np.float32(1.0), high)
