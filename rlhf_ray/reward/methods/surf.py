"""SURF: confident pseudo-labels of pairs that nobody was asked about, and temporal crops (Park et al. 2022)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from rlhf_ray.reward.methods.method import FitMethod

CONFIDENCE = 0.99
"""Least probability of the preferred fragment for a pseudo-label (the paper's τ for locomotion; it also uses 0.999)."""

WEIGHT = 1.0
"""Weight of the pseudo-labels' loss (the paper's λ)."""

RATIO = 4
"""Pairs without labels per comparison of a batch (the paper's μ)."""

CROP = 0.1
"""Largest share of a fragment that a crop leaves out: 5 of 50 steps, as in the paper."""


class Surf(FitMethod):
    """Semi-supervised reward learning with data augmentation.

    Each member labels pairs without answers itself and learns from those labels of which it is confident. It labels whole
    fragments, and learns from crops of them and of answered pairs: a window of the fragment counts, equally long on both sides,
    drawn anew for each batch. For rewards of single steps, leaving steps out of the sum is the same as cutting them off.
    """

    unlabelled_ratio = RATIO

    def steps(self, pairs: int, length: int, generator: Generator) -> Tensor | None:
        """See `FitMethod.steps`: a window of random length and, on each side of each pair, at a random place."""
        shortest = length - round(CROP * length)
        kept = int(torch.randint(shortest, length + 1, (), generator=generator))
        first = torch.randint(0, length - kept + 1, (pairs, 2, 1), generator=generator)
        step = torch.arange(length)
        return ((step >= first) & (step < first + kept)).float()

    def unlabelled_loss(self, differences: Tensor, whole: Tensor) -> Tensor | None:
        """See `FitMethod.unlabelled_loss`: cross entropy of the crops with the member's own confident labels of whole fragments."""
        left = torch.sigmoid(whole)
        labels = (left > 0.5).float()
        confident = (torch.maximum(left, 1 - left) > CONFIDENCE).float()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(differences, labels, reduction="none")
        return WEIGHT * (losses * confident).mean(1)
