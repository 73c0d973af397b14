"""ObservationStatistics: the running normalisation of a policy's observations, part of its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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

    def forward(self, observations: Tensor) -> Tensor:
        """Normalise observations ``[n, size]`` to mean 0 and variance 1, limited to ±10."""
        spread = (self.squares / self.count.clamp_min(1) + LEAST_VARIANCE).sqrt()
        normalised = ((observations - self.mean) / spread).clamp(-LARGEST, LARGEST)
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
