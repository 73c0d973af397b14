"""Classification: whether the reward is zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.settings import Output


class Classification:
    """Cross entropy of "the reward is not zero". See `rlhf_ray.reward.supervised.objectives.RewardObjective`."""

    output: Output = "probability"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return 1 where the reward is not zero, else 0."""
        targets: FloatArray = (rewards != 0).astype(np.float64)
        return targets

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return cross entropies ``[members, n]``."""
        logits: Tensor = networks.logit(inputs).squeeze(-1)
        return binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none")
