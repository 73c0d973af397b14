"""Normalisation of vector observations by their statistics over the comparisons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlhf_ray.settings import InputNormalisation

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
        """Update the statistics.

        Args:
            features: ``[…, at least size]`` of all steps compared so far.
        """
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


def normaliser(size: int, how: InputNormalisation) -> NormalisedInputs | None:
    """Return the normalisation of the first ``size`` columns that the setting names; None for none."""
    return None if how == "none" or not size else NormalisedInputs(size, how)
