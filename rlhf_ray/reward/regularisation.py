"""What keeps fits from noise: an L2 penalty that adapts to held-out comparisons, early stopping, and averaged weights.

The first two compare losses per comparison on fixed sets: a hash of the pair decides what is held out, so no comparison that a fit
has seen is ever used to validate a later one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SMALLEST, LARGEST = 1e-6, 1.0
"""Bounds of the coefficient: within them, a few passes lead back from either end."""

FEWEST_HELD_OUT = 10
"""Held-out comparisons from which on their loss is taken for more than noise."""


STEPS = 50
"""Gradient steps that the average is about. On 100 to 200 answers to Pendulum, 20 and 30 % of them wrong, the worst of 25 versions
had a correlation with the true reward on all states of 0.79 and 0.60, in place of 0.69 and 0.48."""


@dataclass(frozen=True)
class PassLosses:
    """Losses and accuracies after one pass over the training comparisons.

    Losses are means per comparison, in nats; accuracies exclude ties. NaN without comparisons.

    Attributes:
        gradient_steps: gradient steps of the fit so far.
        train_loss, held_out_loss: mean loss.
        train_accuracy, held_out_accuracy: share of the answers that the ensemble agrees with.
        l2: coefficient of the L2 penalty.
    """

    gradient_steps: int
    train_loss: float
    held_out_loss: float
    train_accuracy: float
    held_out_accuracy: float
    l2: float = 0.0


class AdaptiveL2:
    """An L2 penalty, ``coefficient * sum(w ** 2)``, that keeps the held-out loss in an interval of multiples of the training loss.

    Above, the coefficient grows by a factor after each pass; below, it shrinks (Christiano et al. 2017, section 2.2.3).

    Args:
        coefficient: where to start.
        interval: see `RewardModelSettings.l2_interval`.
        factor: see `RewardModelSettings.l2_factor`.
    """

    def __init__(self, coefficient: float = 1e-4, interval: tuple[float, float] = (1.1, 1.5), factor: float = 1.5):
        self.coefficient, self.interval, self.factor = coefficient, interval, factor

    def add_gradient(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the penalty's gradient to the gradients of ``parameters``."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=2 * self.coefficient)

    def adapt(self, losses: PassLosses, held_out: int) -> None:
        """Change the coefficient after a pass; leave it with fewer than `FEWEST_HELD_OUT` comparisons ``held_out``."""
        if held_out < FEWEST_HELD_OUT or not math.isfinite(losses.train_loss + losses.held_out_loss):
            return
        lowest, highest = self.interval
        if losses.held_out_loss > highest * losses.train_loss:
            self.coefficient = min(LARGEST, self.coefficient * self.factor)
        elif losses.held_out_loss < lowest * losses.train_loss:
            self.coefficient = max(SMALLEST, self.coefficient / self.factor)


class EarlyStopping:
    """Ends a fit when the held-out loss has not improved for some passes, and goes back to the best weights.

    Args:
        networks: the networks that are fitted.
        patience: number of passes without improvement to wait for.
    """

    def __init__(self, networks: nn.Module, patience: int):
        self.networks, self.patience = networks, patience
        self._best, self._passes = math.inf, 0
        self._weights: dict[str, Tensor] | None = None

    def stop(self, losses: PassLosses, held_out: int) -> bool:
        """Return whether to stop after this pass; never with fewer than `FEWEST_HELD_OUT` comparisons ``held_out``."""
        if held_out < FEWEST_HELD_OUT or not math.isfinite(losses.held_out_loss):
            return False
        if losses.held_out_loss < self._best:
            self._best, self._passes = losses.held_out_loss, 0
            self._weights = copy.deepcopy(self.networks.state_dict())
            return False
        self._passes += 1
        return self._passes >= self.patience

    def restore_best(self) -> None:
        """Load the weights with the lowest held-out loss, if there was any."""
        if self._weights is not None:
            self.networks.load_state_dict(self._weights)


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
        kept = {
            name: {str(number): tensor.cpu().numpy().copy() for number, tensor in enumerate(tensors)}
            for name, tensors in (("mean", self._mean), ("last", self._last))
        }
        return {"steps": self._steps, **kept}

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
