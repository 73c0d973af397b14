"""The preference model: from returns of two fragments to the probability that one is preferred, and the loss."""

import torch
from torch import Tensor


def discounts(length: int, discount: float) -> Tensor:
    """``discount ** t`` for each step ``t`` of a fragment, ``[length]`` float32."""
    return discount ** torch.arange(length, dtype=torch.float32)


def log_likelihood_loss(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor = 0.0) -> Tensor:
    """Cross entropy of the Bradley-Terry model with label noise (Christiano et al. 2017, section 2.2.3).

    The left fragment is preferred with probability ``noise / 2 + (1 - noise) * sigmoid(return_difference)``.

    Args:
        return_difference: ``[..., n]``: return of the left fragment minus that of the right one.
        preferences: ``[n]``: the answers; 0.5 is a tie and asks for equal returns.
        label_noise: the share of answers assumed to be given at random (of which half are wrong), of all or ``[n]``.

    Returns:
        The loss of each comparison, ``[..., n]``, in nats.
    """
    preferences = preferences.expand(return_difference.shape)
    if not isinstance(label_noise, Tensor) and label_noise == 0.0:
        return torch.nn.functional.binary_cross_entropy_with_logits(return_difference, preferences, reduction="none")
    left = label_noise / 2 + (1 - label_noise) * torch.sigmoid(return_difference)
    right = label_noise / 2 + (1 - label_noise) * torch.sigmoid(-return_difference)
    return -(preferences * left.log() + (1 - preferences) * right.log())
