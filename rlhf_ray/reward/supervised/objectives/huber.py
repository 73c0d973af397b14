"""Huber: squared error near the target, absolute error far from it, so that few outliers don't decide the fit."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import huber_loss

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.settings import Output


class Huber:
    """Huber loss, linear beyond one unit of the scaled reward. See `rlhf_ray.reward.supervised.objectives.RewardObjective`."""

    output: Output = "reward"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return the rewards."""
        return rewards

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return Huber losses ``[members, n]``."""
        rewards: Tensor = networks(inputs).squeeze(-1)
        return huber_loss(rewards, targets.expand_as(rewards), reduction="none")
