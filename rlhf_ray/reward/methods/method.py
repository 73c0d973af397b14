"""FitMethod: what an addition to a fit may change. The base class changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor


@dataclass(frozen=True)
class FitLabels:
    """The training comparisons as a method sees them before a pass.

    Attributes:
        differences: ``[members, n]`` float32: each member's current return of the left fragment minus that of the right one.
        preferences: ``[n]`` float32: the labels: 1 left, 0 right, 0.5 equally good.
        weights: ``[n]`` float32: factor of each comparison's loss.
    """

    differences: Tensor
    preferences: Tensor
    weights: Tensor


class FitMethod:
    """An addition to a fit. Subclass it and override what it changes.

    The constructor of a custom method may take ``settings``, the `RewardModelSettings`.
    """

    unlabelled_ratio: int = 0
    """Pairs without labels per comparison of a batch, for `unlabelled_loss`."""
    revises: bool = False
    """Whether `revise` changes anything: it costs a forward pass over all comparisons."""

    def revise(self, labels: FitLabels) -> FitLabels:
        """Change labels and weights before a pass over the training comparisons. The store keeps the answers as they were."""
        return labels

    def steps(self, pairs: int, length: int, generator: Generator) -> Tensor | None:
        """Draw which steps of each fragment count in a batch.

        Args:
            pairs: number of pairs in the batch.
            length: steps per fragment.
            generator: source of randomness.

        Returns:
            ``[pairs, 2, length]`` float32 factors of the steps' rewards; None for all steps.
        """
        return None

    def unlabelled_loss(self, differences: Tensor, whole: Tensor) -> Tensor | None:
        """Compute a loss of pairs without labels, which is added to the loss of a batch.

        Args:
            differences: ``[members, m]`` float32, with gradients: return differences of the pairs, over the steps that count.
            whole: ``[members, m]`` float32, without gradients: those over all steps.

        Returns:
            ``[members]`` float32; None for no loss.
        """
        return None

    def deviation_weight(self, progress: float) -> float | None:
        """Return the weight of the ensemble's standard deviation in the reward of this version; None for the setting's.

        Args:
            progress: the training's progress, 0 to 1.
        """
        return None

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the last fit."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
