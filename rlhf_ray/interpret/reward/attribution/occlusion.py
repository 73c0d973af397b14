"""Occlusion: replace each part and see how much the reward falls. Needs no gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import FIELDS, Background, Maps
from rlhf_ray.interpret.reward.attribution.interventions import part_effects


@dataclass
class Occlusion:
    """What the reward loses when a part is replaced, spread evenly over the part.

    Args:
        fill: what stands in place of the part: see `interventions.FILLS`.
    """

    fill: str = "typical"
    signed, complete = True, False

    @property
    def name(self) -> str:
        """Name in tables and file names."""
        return f"occlusion_{self.fill}"

    @property
    def title(self) -> str:
        """What texts call it."""
        return f"Occlusion ({self.fill})"

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply; None if it does."""
        images = background.regions is not None and background.regions.kind == "patch"
        if self.fill in ("blur", "inpaint") and not images:
            return "The observations are not images."
        return None

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        effects, at, found = part_effects(background, steps, self.fill).signed, 0, {}
        for name in background.inputs:
            masks = background.parts(name)[1].astype(np.float64)
            spread = masks.reshape(len(masks), -1)
            spread = spread / spread.sum(1, keepdims=True)
            values = effects[:, at : at + len(masks)] @ spread
            found[name] = values.reshape(getattr(steps, FIELDS[name]).shape)
            at += len(masks)
        return found


METHODS = (Occlusion("typical"), Occlusion("donor"), Occlusion("blur"), Occlusion("inpaint"))
