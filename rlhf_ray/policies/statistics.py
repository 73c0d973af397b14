"""How policies scale vectors: by their bounds, or by the running statistics of what was seen, which are part of their weights."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.spaces import formal_numbers

LARGEST = 10.0
"""Largest absolute value of a normalised feature, as in baselines' VecNormalize."""
LEAST_VARIANCE = 1e-8


class ObservationStatistics(nn.Module):
    """Mean and variance of each feature over all observations so far. Without any, observations stay as they are.

    They are buffers: saved, sent and loaded with the policy's weights, and not trained.

    Args:
        size: number of features.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("squares", torch.zeros(size))

    @property
    def spread(self) -> Tensor:
        """The standard deviation of each feature, at least 1e-4."""
        return (self.squares / self.count.clamp_min(1) + LEAST_VARIANCE).sqrt()

    def forward(self, observations: Tensor) -> Tensor:
        """Normalise observations ``[n, size]`` to mean 0 and variance 1, limited to ±10."""
        normalised = ((observations - self.mean) / self.spread).clamp(-LARGEST, LARGEST)
        return torch.where(self.count > 0, normalised, observations)

    @torch.no_grad()
    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, size]`` (Chan et al. 1979)."""
        new = observations.to(self.mean.device, torch.float64)
        total = self.count + len(new)
        shift = new.mean(0) - self.mean
        self.squares += ((new - new.mean(0)) ** 2).sum(0) + shift**2 * self.count * len(new) / total
        self.mean += shift * len(new) / total
        self.count.copy_(total)


class FormalNumbers(nn.Module):
    """The numbers of an observation whose declared bounds are only formal (`rlhf_ray.data.spaces`), by what was seen of them.

    Scales are powers of two, from 2 to 4 standard deviations, and zeros multiples of them: they stay the same while statistics
    move a little, as bounds do. (With mean and deviation as they are, an agent that learns from 24,000 steps got half as far.)

    Args:
        numbers: ``[size]`` bool: which.
    """

    index: Tensor

    def __init__(self, numbers: Any):
        super().__init__()
        self.register_buffer("index", torch.as_tensor(np.flatnonzero(numbers)), persistent=False)
        self.seen = ObservationStatistics(len(self.index))

    def forward(self, observations: Tensor, scaled: Tensor) -> Tensor:
        """Return ``scaled`` with these numbers scaled by what was seen; unchanged before anything was.

        Args:
            observations: ``[n, size]``.
            scaled: the same, scaled by the declared bounds.
        """
        numbers, count = observations[:, self.index], self.seen.count
        scale = 2.0 * torch.exp2(torch.ceil(torch.log2(self.seen.spread)))
        by_seen = (numbers / scale - torch.round(self.seen.mean / scale)).clamp(-LARGEST, LARGEST)
        # A negative count: as they are. A policy from elsewhere may take them so.
        numbers = torch.where(count > 0, by_seen, torch.where(count < 0, numbers, scaled[:, self.index]))
        return scaled.index_copy(1, self.index, numbers)

    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, size]``."""
        if self.seen.count >= 0:
            self.seen.observe(observations[:, self.index.to(observations.device)])


class TakesVectors(nn.Module):
    """The first step of policy networks on vectors: numbers with finite bounds are scaled to [-1, 1], others stay as they are.

    With ``normalize``, all are normalised by their running statistics. Without, those whose bounds are formal are scaled by
    what was seen.

    Attributes:
        statistics: of all numbers, with ``normalize``; otherwise None.
        formal: of those with formal bounds; None if there are none, or with ``normalize``.
    """

    middle: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.statistics: ObservationStatistics | None = None
        self.formal: FormalNumbers | None = None

    def take(self, space: gym.spaces.Box, *, normalize: bool) -> None:
        """Make the first step for a space."""
        middle, scale = bounds(space)
        self.register_buffer("middle", torch.as_tensor(middle, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        numbers = formal_numbers(space)
        if normalize:
            self.statistics = ObservationStatistics(numbers.size)
        elif numbers.any():
            self.formal = FormalNumbers(numbers)

    def scaled(self, observations: Tensor) -> Tensor:
        """Return observations ``[n, …]`` as the layers take them, ``[n, size]``."""
        if self.statistics is not None:
            normalised: Tensor = self.statistics(observations.float().flatten(1))
            return normalised
        scaled = ((observations.float() - self.middle) / self.scale).flatten(1)
        return scaled if self.formal is None else self.formal(observations.float().flatten(1), scaled)

    @property
    def counts(self) -> bool:
        """Whether `observe` has an effect."""
        return self.statistics is not None or self.formal is not None

    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, …]`` in the statistics."""
        for numbers in (self.statistics, self.formal):
            if numbers is not None:
                numbers.observe(observations.flatten(1))


def bounds(space: gym.spaces.Box) -> tuple[Any, Any]:
    """Return middle and half width of each number: 0 and 1 where it is unbounded."""
    bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high > space.low)
    low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
    with np.errstate(over="ignore"):
        middle, half = (low + high) / 2.0, (high - low) / 2.0
    most = np.finfo(np.float32).max
    return np.clip(middle, -most, most), np.minimum(half, most)
