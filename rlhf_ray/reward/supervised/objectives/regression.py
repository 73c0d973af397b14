"""Regression: squared error."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.settings import Output


class Regression:
    """Squared error of the reward. See `rlhf_ray.reward.supervised.objectives.RewardObjective`."""

    output: Output = "reward"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return the rewards."""
        return rewards

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return squared errors ``[members, n]``."""
        errors: Tensor = networks(inputs).squeeze(-1) - targets
        return errors.square()
