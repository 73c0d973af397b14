"""Objectives: what a fit to recorded rewards minimises."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import Output


class RewardObjective(Protocol):
    """An objective.

    Attributes:
        output: what the networks' output is (`RewardModelSettings.output`).
    """

    output: Output

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return what the learned reward approximates, ``[n]`` float64: the rewards, or a function of each of them."""
        ...

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Compute the loss of each step for each member.

        Args:
            networks: the `rlhf_ray.reward.networks.RewardNetwork`, with this objective's ``output``.
            inputs: its inputs for ``n`` fragments of one step.
            targets: ``[n]`` float32, scaled so that nonzero ones are of the order of 1.

        Returns:
            ``[members, n]`` float32.
        """
        ...


class Regression:
    """Squared error of the reward."""

    output: Output = "reward"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return the rewards."""
        return rewards

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return squared errors ``[members, n]``."""
        errors: Tensor = networks(inputs).squeeze(-1) - targets
        return errors.square()


class Huber(Regression):
    """Squared error up to one unit of the scaled reward, linear beyond it, so that few outliers don't decide the fit."""

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return Huber losses ``[members, n]``."""
        rewards: Tensor = networks(inputs).squeeze(-1)
        return huber_loss(rewards, targets.expand_as(rewards), reduction="none")


class Classification:
    """Cross entropy of "the reward is not zero"."""

    output: Output = "probability"

    def targets(self, rewards: FloatArray) -> FloatArray:
        """Return 1 where the reward is not zero, else 0."""
        targets: FloatArray = (rewards != 0).astype(np.float64)
        return targets

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return cross entropies ``[members, n]``."""
        logits: Tensor = networks.logit(inputs).squeeze(-1)
        return binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none")


class TwoPartObjective(Regression):
    """Cross entropy of "not zero" plus, on nonzero rewards, the squared error of the size."""

    output: Output = "two_part"

    def losses(self, networks: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return the sums of both losses ``[members, n]``."""
        whether, size = (part.squeeze(-1) for part in networks.parts(inputs))
        some = (targets != 0).float()
        decided: Tensor = binary_cross_entropy_with_logits(whether, some.expand_as(whether), reduction="none")
        losses: Tensor = decided + some * (size - targets).square()
        return losses


OBJECTIVES: Registry[Any] = Registry(
    "supervised.objective",
    RewardObjective,
    {"regression": Regression, "huber": Huber, "classification": Classification, "two_part": TwoPartObjective},
)
"""Built-in objectives by name."""
