"""Action distributions from a network's outputs: logits of discrete actions; means and log standard deviations of Box actions.

A MultiDiscrete action has independent components; their logits come one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rlhf_ray.data.spaces import choices_of


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
    parts: tuple[Tensor, ...] = torch.split(logits, list(choices), -1)
    return parts


def _joined(components: list[Tensor], space: gym.Space[Any]) -> Tensor:
    return components[0] if isinstance(space, gym.spaces.Discrete) else torch.stack(components, -1)
