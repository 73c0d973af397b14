"""Filters: conditions that must hold together at the same step. A second computation of what the page shows (static/filters.js)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret.agent.panel.data import PanelData
from rlhf_ray.interpret.agent.panel.write import LARGEST_HALF, MISSING, SIGNED, curved_levels


@dataclass(frozen=True)
class Within:
    """A number lies within bounds, both included. A missing number lies within none."""

    what: Literal["loading", "gradient", "value", "reward"]
    component: str = ""
    quantity: str = ""
    low: float | None = None
    high: float | None = None

    def holds(self, data: PanelData) -> BoolArray:
        x = self._numbers(data)
        holds: BoolArray = ~np.isnan(x)
        if self.low is not None:
            holds &= x >= self.low
        if self.high is not None:
            holds &= x <= self.high
        return holds

    def _numbers(self, data: PanelData) -> FloatArray:
        if self.what in ("value", "reward"):
            return shown_half(data.values if self.what == "value" else data.rewards)
        component = list(data.components).index(self.component)
        if self.what == "loading":
            return shown_half(data.loadings[:, :, component])
        return shown_curved(data.gradients[self.quantity])[:, :, component]


@dataclass(frozen=True)
class OneOf:
    """The action, the label or the sample's outcome is one of ``names``."""

    what: Literal["action", "label", "outcome"]
    names: Sequence[str]
    clustering: str = ""

    def holds(self, data: PanelData) -> BoolArray:
        if self.what == "outcome":
            is_one = np.array([outcome in self.names for outcome in data.outcomes], bool)
            return np.broadcast_to(is_one[:, None], data.real.shape)
        numbers = data.actions if self.what == "action" else data.labels[self.clustering]
        every = list(data.action_names) if self.what == "action" else data.names_of(self.clustering)
        return np.isin(numbers, [number for number, name in enumerate(every) if name in self.names])


def matching(data: PanelData, conditions: Sequence[Within | OneOf]) -> BoolArray:
    """Return the steps ``[n, T]`` at which all ``conditions`` hold, with the numbers as the page shows them."""
    holds = data.real.copy()
    for condition in conditions:
        holds &= condition.holds(data)
    return holds


def shown_half(values: Array) -> FloatArray:
    """Return what the page reads from `half`, float64."""
    return np.clip(np.asarray(values, np.float64), -LARGEST_HALF, LARGEST_HALF).astype(np.float16).astype(np.float64)


def shown_curved(values: Array) -> FloatArray:
    """Return what the page reads from `curved`, float64."""
    levels, scale = curved_levels(values)
    level = levels.astype(np.float64)
    shown: FloatArray = np.where(levels == MISSING, np.nan, np.sign(level) * level * level / SIGNED**2 * scale)
    return shown
