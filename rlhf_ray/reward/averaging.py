"""WeightAverage: what a fit publishes is the average of its last weights, not where the last minibatch left them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEPS = 50
"""Gradient steps that the average is about. On 100 to 200 answers to Pendulum, 20 and 30 % of them wrong, the worst of 25 versions
had a correlation with the true reward on all states of 0.79 and 0.60, in place of 0.69 and 0.48."""


class WeightAverage:
    """The exponential moving average of weights over gradient steps (Polyak and Juditsky 1992), beside the weights themselves.

    A fit starts from the weights and ends with their average in their place.

    Args:
        tensors: the weights, which the optimiser changes in place.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self._tensors = list(tensors)
        self._mean: list[Tensor] = []
        self._last: list[Tensor] = []
        """The weights themselves, while the average is in their place."""
        self._steps = 0

    @torch.no_grad()
    def begin(self) -> None:
        """Put the weights where the last fit left them."""
        self._put(self._last)
        self._last = []

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights after a gradient step. The first `STEPS` count the same."""
        if not self._steps:
            self._mean = [tensor.detach().clone() for tensor in self._tensors]
        self._steps += 1
        share = max(1 / self._steps, 1 / STEPS)
        torch._foreach_lerp_(self._mean, self._tensors, share)

    @torch.no_grad()
    def end(self) -> None:
        """Put the average in the weights' place."""
        if self._steps:
            self._last = [tensor.detach().clone() for tensor in self._tensors]
            self._put(self._mean)

    def restart(self) -> None:
        """Forget the average: the weights come from elsewhere."""
        self._steps, self._mean, self._last = 0, [], []

    def state(self) -> dict[str, Any]:
        """Return the state as numpy arrays and plain values."""
        return {
            "steps": self._steps,
            "mean": {str(number): tensor.cpu().numpy().copy() for number, tensor in enumerate(self._mean)},
            "last": {str(number): tensor.cpu().numpy().copy() for number, tensor in enumerate(self._last)},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._steps = int(state["steps"])
        self._mean, self._last = (
            [
                torch.as_tensor(np.array(state[name][str(number)])).to(tensor.device)
                for number, tensor in enumerate(self._tensors)
                if str(number) in state[name]
            ]
            for name in ("mean", "last")
        )

    def _put(self, values: Sequence[Tensor]) -> None:
        for tensor, value in zip(self._tensors, values, strict=bool(values)):
            tensor.copy_(value)
