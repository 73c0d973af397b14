"""A ``RewardNet`` of imitation as a reward network. `imitation` itself is not imported: its networks say what they are."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import RewardModelSettings


class RewardNetStep(nn.Module):
    """A `rlhf_ray.reward.networks.StepNetwork` around a ``RewardNet``: any class of imitation's, or a subclass of a user's.

    Observations and actions go through the network's own ``preprocess``: images are scaled to [0, 1], discrete actions become
    one-hot. As in imitation's ``PreferenceModel``, the reward is ``forward``; wrappers that change ``predict_processed`` alone
    (``NormalizedRewardNet``) have no effect, because `rlhf_ray.reward.RewardEnsemble` normalises each member itself. Layers that
    keep running statistics (``RunningNorm``, ``EMANorm``) learn them during fits and not during predictions.

    Args:
        net: the ``RewardNet``.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net: Any = net
        space = net.action_space
        self.start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Return rewards ``[batch]`` float32."""
        if self.start:  # imitation's one-hot actions begin at 0
            actions = actions - self.start
        fitting = self.training and torch.is_grad_enabled()
        if self.net.training != fitting:
            self.net.train(fitting)
        rewards: Tensor = self.net(*self.net.preprocess(observations, actions, next_observations, terminated))
        return rewards


def is_reward_net(network: nn.Module) -> bool:
    """Return whether ``network`` is a ``RewardNet`` of imitation."""
    return hasattr(network, "predict_processed") and hasattr(network, "preprocess")


def members_of(net: nn.Module, settings: RewardModelSettings) -> list[nn.Module] | None:
    """Return the members of a ``RewardEnsemble``, alone or inside an ``AddSTDRewardWrapper``; None if ``net`` is none.

    Raises:
        SettingError: the settings have another ensemble size, or another weight of the deviation.
    """
    inner, alpha = net, 0.0  # type: Any, float
    while hasattr(inner, "base"):
        alpha = alpha or float(getattr(inner, "default_alpha", 0.0))
        inner = inner.base
    if not hasattr(inner, "predict_processed_all"):
        return None
    members = list(inner.members)
    if len(members) != settings.ensemble_size:
        raise SettingError(
            f"reward_model.network is {settings.network!r}, an ensemble of {len(members)}, but reward_model.ensemble_size is "
            f"{settings.ensemble_size}: set it to {len(members)}."
        )
    weight = float(getattr(settings, "deviation_weight", 0.0))
    ours = alpha * math.sqrt(len(members) / (len(members) - 1))  # imitation divides the variance by n - 1
    if not math.isclose(ours, weight, rel_tol=1e-3):
        raise SettingError(
            f"reward_model.network is {settings.network!r}, which adds {alpha:g} standard deviations, but "
            f"reward_model.deviation_weight is {weight:g}: set it to {ours:.4g}, since imitation divides the variance by one less."
        )
    return members
