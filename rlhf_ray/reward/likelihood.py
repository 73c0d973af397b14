"""The preference likelihood: from the returns of two fragments to the probability that one is preferred, and the loss."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import RewardModelSettings


class Loss(Protocol):
    """The loss that a fit minimises: a function. A custom loss gets the same arguments, by position."""

    def __call__(self, return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor) -> Tensor:
        """Compute the loss of each comparison for each member. Its gradient trains the members.

        Args:
            return_difference: ``[..., n]`` float32: return of the left fragment minus return of the right one, per member.
            preferences: ``[n]`` float32: the answers: 1 left, 0 right, 0.5 equally good.
            label_noise: share of answers assumed to be random, half of them wrong: one number, or ``[n]``. Above 1, from 1 to 2,
                for answers of an inverted annotator, of which more than half are wrong.

        Returns:
            ``[..., n]`` float32.
        """
        ...


def discounts(length: int, discount: float) -> Tensor:
    """Return ``discount ** t`` for each step ``t`` of a fragment, ``[length]`` float32."""
    return discount ** torch.arange(length, dtype=torch.float32)


def return_differences(rewards: Tensor, discount: float, crop: Tensor | None = None) -> Tensor:
    """Map rewards ``[members, n, 2, length]`` to ``[members, n]``: left return minus right return.

    Args:
        rewards: of each step of each pair.
        discount: factor per step.
        crop: factors of the steps, ``[n, 2, length]``; None if every step counts.
    """
    if crop is not None:
        rewards = rewards * crop.to(rewards.device)
    factors = None if discount == 1.0 else discounts(rewards.shape[-1], discount).to(rewards.device)
    left, right = (rewards.sum(-1) if factors is None else rewards @ factors).unbind(-1)
    return left - right


def log_likelihood_loss(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor = 0.0) -> Tensor:
    """Cross entropy of the Bradley-Terry model with label noise (Christiano et al. 2017, section 2.2.3).

    The model prefers the left fragment with probability ``noise / 2 + (1 - noise) * sigmoid(return_difference)``.

    Args:
        return_difference: ``[..., n]`` float32: return of the left fragment minus return of the right one.
        preferences: ``[n]`` float32: the answers; 0.5 is a tie, with its minimum at equal returns.
        label_noise: twice the share of wrong answers: one number, or ``[n]``, from 0 to 2. Default 0.

    Returns:
        The loss of each comparison, ``[..., n]``, in nats.
    """
    preferences = preferences.expand(return_difference.shape)
    if not isinstance(label_noise, Tensor) and label_noise == 0.0:
        return torch.nn.functional.binary_cross_entropy_with_logits(return_difference, preferences, reduction="none")
    left = label_noise / 2 + (1 - label_noise) * torch.sigmoid(return_difference)
    right = label_noise / 2 + (1 - label_noise) * torch.sigmoid(-return_difference)
    return -(preferences * left.log() + (1 - preferences) * right.log())


def log_likelihood_slope(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor = 0.0) -> Tensor:
    """Derivative of `log_likelihood_loss` by the return differences, without autograd. Arguments and shape are the same."""
    left = torch.sigmoid(return_difference)
    if not isinstance(label_noise, Tensor) and label_noise == 0.0:
        return left - preferences
    probability = label_noise / 2 + (1 - label_noise) * left
    return (probability - preferences) / (probability * (1 - probability)) * (1 - label_noise) * left * (1 - left)


def label_smoothing_loss(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor = 0.0) -> Tensor:
    """Cross entropy of the Bradley-Terry model with smoothed answers (Szegedy et al. 2016; Mitchell 2023 for preferences).

    An answer for left counts as ``1 - noise / 2``, its probability of being right. In `log_likelihood_loss`, an answer against a
    large return difference has nearly no gradient, since it is taken for a wrong one: a model that is sure of itself stays as it
    is. Here the gradient is the largest there, and no difference is worth more than the log odds of a right answer. Arguments and
    shape are the same.
    """
    return torch.nn.functional.binary_cross_entropy_with_logits(
        return_difference, _smoothed(return_difference, preferences, label_noise), reduction="none"
    )


def label_smoothing_slope(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor = 0.0) -> Tensor:
    """Derivative of `label_smoothing_loss` by the return differences, without autograd. Arguments and shape are the same."""
    return torch.sigmoid(return_difference) - _smoothed(return_difference, preferences, label_noise)


def _smoothed(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor) -> Tensor:
    return (label_noise / 2 + (1 - label_noise) * preferences).expand(return_difference.shape)


LOSSES: Registry[Any] = Registry(
    "reward_model.loss", Loss, {"bradley_terry": log_likelihood_loss, "label_smoothing": label_smoothing_loss}
)
"""Built-in losses by name: the functions themselves."""

SLOPES: dict[str, Loss] = {"bradley_terry": log_likelihood_slope, "label_smoothing": label_smoothing_slope}
"""The derivatives of built-in losses by the return differences, without autograd."""


def make_loss(settings: RewardModelSettings) -> Loss:
    """Return the loss that ``settings.loss`` names.

    Raises:
        SettingError: no loss has this name, or it doesn't behave like a `Loss`.
    """
    given: Loss = LOSSES.find(settings.loss)
    if settings.loss in LOSSES.parts:
        return given

    def loss(return_difference: Tensor, preferences: Tensor, label_noise: float | Tensor) -> Tensor:
        noise = label_noise.clone() if isinstance(label_noise, Tensor) else label_noise
        return given(return_difference.clone(), preferences.clone(), noise)  # it may change its inputs in place

    difference = torch.zeros(2, 3, requires_grad=True)
    try:
        losses = loss(difference, torch.tensor([0.0, 0.5, 1.0]), settings.label_noise or 0.0)
        shape = tuple(losses.shape)
        losses.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SettingError(
            f"reward_model.loss is {settings.loss!r}, and a trial call raised {type(error).__name__}: {error}. It is called with "
            "(return_difference, preferences, label_noise) and must return a loss with a gradient: see "
            "rlhf_ray.reward.likelihood.Loss."
        ) from error
    if shape != (2, 3):
        raise SettingError(
            f"reward_model.loss is {settings.loss!r}, and for return differences of shape (2, 3) it returned shape {shape}: return "
            "one loss per difference, not their mean."
        )
    return loss
