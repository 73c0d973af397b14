"""Objectives: what a fit to recorded rewards minimises. One file per objective."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.registry import Registry
from rlhf_ray.reward.supervised.objectives.classification import Classification
from rlhf_ray.reward.supervised.objectives.huber import Huber
from rlhf_ray.reward.supervised.objectives.regression import Regression
from rlhf_ray.reward.supervised.objectives.two_part import TwoPartObjective
from rlhf_ray.settings import Output, SupervisedSettings


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


OBJECTIVES: Registry[Any] = Registry(
    "supervised.objective",
    RewardObjective,
    {
        "regression": Regression,
        "huber": Huber,
        "classification": Classification,
        "two_part": TwoPartObjective,
    },
)
"""Built-in objectives by name."""


def make_objective(settings: SupervisedSettings) -> RewardObjective:
    """Build the objective that ``settings.objective`` names.

    Raises:
        SettingError: no objective has this name, or it doesn't behave like an `RewardObjective`.
    """
    objective: RewardObjective = OBJECTIVES.make(settings.objective)
    return objective
