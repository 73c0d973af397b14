"""Two-part: whether the reward is zero, and how large it is where it is not."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.settings import Output


class TwoPartObjective:
    """Cross entropy of "not zero" plus, on nonzero rewards, the squared error of the size.

    See `rlhf_ray.reward.supervised.objectives.RewardObjective`.
    """

    output: Output = "two_part"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return the rewards."""
        return rewards

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return the sums of both losses ``[members, n]``."""
        whether, size = (part.squeeze(-1) for part in networks.parts(inputs))
        some = (targets != 0).float()
        decided: Tensor = binary_cross_entropy_with_logits(whether, some.expand_as(whether), reduction="none")
        losses: Tensor = decided + some * (size - targets).square()
        return losses
