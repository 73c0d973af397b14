"""Filters: conditions that must hold together at the same step. A second computation of what the page shows (static/filters.js)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.interpret.agent.panel.data import PanelData
from rlhf_ray.interpret.agent.panel.write import LARGEST_HALF, MISSING, SIGNED, curved_levels


@dataclass(frozen=True)
class Within:
    """A number lies within bounds, both included. A missing number lies within none."""

    what: str  # loading, gradient, value or reward
    component: str = ""
    quantity: str = ""
    low: float = -math.inf
    high: float = math.inf

    def holds(self, data: PanelData) -> BoolArray:
        if self.what in ("value", "reward"):
            x = shown_half(data.values if self.what == "value" else data.rewards)
        else:
            every = shown_half(data.loadings) if self.what == "loading" else shown_curved(data.gradients[self.quantity])
            x = every[:, :, list(data.components).index(self.component)]
        return np.asarray((x >= self.low) & (x <= self.high))


@dataclass(frozen=True)
class OneOf:
    """The action, the label or the sample's outcome is one of ``names``."""

    what: str  # action, label or outcome
    names: Sequence[str]
    clustering: str = ""

    def holds(self, data: PanelData) -> BoolArray:
        if self.what == "outcome":
            return np.broadcast_to(np.isin(data.outcomes, self.names)[:, None], data.real.shape)
        numbers = data.actions if self.what == "action" else data.labels[self.clustering]
        every = list(data.action_names) if self.what == "action" else data.names_of(self.clustering)
        return np.isin(numbers, [number for number, name in enumerate(every) if name in self.names])


def matching(data: PanelData, conditions: Sequence[Within | OneOf]) -> BoolArray:
    """Return the steps ``[n, T]`` at which all ``conditions`` hold, with the numbers as the page shows them."""
    return np.all([data.real, *(condition.holds(data) for condition in conditions)], 0)


def shown_half(values: Array) -> Array:
    """Return what the page reads from `half`, float64."""
    return np.clip(np.asarray(values, np.float64), -LARGEST_HALF, LARGEST_HALF).astype(np.float16).astype(np.float64)


def shown_curved(values: Array) -> Array:
    """Return what the page reads from `curved`, float64."""
    levels, scale = curved_levels(values)
    level = levels.astype(np.float64)
    return np.where(levels == MISSING, np.nan, np.sign(level) * level * level / SIGNED**2 * scale)
