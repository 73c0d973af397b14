"""Occlusion: replace each part and see how much the output falls. Needs no gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.interpret.attribution.gradcam import NO_IMAGES
from rlhf_ray.interpret.attribution.interventions import OF_IMAGES, part_effects
from rlhf_ray.interpret.attribution.method import Method
from rlhf_ray.interpret.attribution.question import Maps, Question


@dataclass
class Occlusion(Method):
    """What the output loses when a part is replaced, spread evenly over the part.

    Args:
        fill: what stands in place of the part: see `interventions.FILLS`.
    """

    fill: str = "typical"

    def __post_init__(self) -> None:
        self.name, self.title = f"occlusion_{self.fill}", f"Occlusion ({self.fill})"

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply; None if it does."""
        return NO_IMAGES if self.fill in OF_IMAGES and not question.images else None

    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``."""
        effects, first = part_effects(question, moments, self.fill).signed, 0
        maps: Maps = {}
        for name in question.names:
            masks = question.parts(name)[1]
            maps[name] = spread(effects[:, first : first + len(masks)], masks)
            first += len(masks)
        return maps


def spread(values: FloatArray, masks: BoolArray) -> FloatArray:
    """Spread values of parts ``[n, parts]`` evenly over them, ``[n, *shape]``; ``masks`` ``[parts, *shape]``."""
    weights = masks.reshape(len(masks), -1).astype(np.float64)
    weights /= weights.sum(1, keepdims=True)
    return np.asarray(values @ weights).reshape(-1, *masks.shape[1:])
