"""Action distributions from a network's outputs: logits of Discrete actions; means and log standard deviations of Box actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor


def best(logits: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the most likely policy actions: ``[n]`` int64, or means ``[n, size]``."""
    return logits.argmax(-1) if _discrete(space) else logits.chunk(2, -1)[0]


def sample(logits: Tensor, space: gym.Space[Any], generator: torch.Generator) -> Tensor:
    """Draw policy actions: ``[n]`` int64, or ``[n, size]``."""
    if _discrete(space):
        return (logits + gumbel_noise(logits.shape, generator)).argmax(-1)
    mean, log_std = logits.chunk(2, -1)
    return mean + log_std.exp() * torch.randn(mean.shape, generator=generator)


def gumbel_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard Gumbel noise: the arg max of logits plus noise is a sample."""
    # An exponential variate is positive; the least that float32 draws, 0, would be infinite.
    exponential = torch.empty(tuple(shape)).exponential_(generator=generator)
    return -torch.log(exponential.clamp_min(1e-20))


def log_probability(logits: Tensor, actions: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the log probability (density) ``[n]`` of policy actions."""
    if _discrete(space):
        return logits.log_softmax(-1).gather(-1, actions.long()[..., None]).squeeze(-1)
    mean, log_std = logits.chunk(2, -1)
    return (-0.5 * ((actions - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def entropy(logits: Tensor, space: gym.Space[Any]) -> Tensor:
    """Return the entropy ``[n]`` in nats."""
    if _discrete(space):
        logs = logits.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)
    return (logits.chunk(2, -1)[1] + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)


def _discrete(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Discrete)
