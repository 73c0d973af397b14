"""Greydanus' perturbation: blur a spot of the image and see how much the reward changes (Greydanus et al. 2018, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import FIELDS, Background, Maps, repeated, replaced
from rlhf_ray.interpret.reward.attribution.method import no_images
from rlhf_ray.reward.functions import Input


@dataclass
class Perturbation:
    """The absolute change of the reward when a soft spot is blurred, for spots on a lattice, spread over the spots.

    In units of the reward, on the same scale for every frame: neither squared nor divided by the frame's maximum.

    Args:
        lattice: spots per side.
    """

    lattice: int = 10
    name, title, signed, complete = "perturbation", "Perturbation (Greydanus)", False, False

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply; None if it does."""
        return no_images(background)

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``. The action and the end of the episode have none: zeros."""
        maps, before = background.zeros(steps), background.reward.of(steps)
        for name in background.inputs:
            if name in ("state", "next_state"):
                height, width, channels = getattr(steps, FIELDS[name]).shape[1:]
                spots = self.spots(height, width)
                changes = self._changes(background, steps, name, spots, before)
                # Spots overlap: each pixel gets the mean of those that cover it, weighted by how much they cover it.
                density = np.einsum("nk,khw->nhw", changes, spots) / np.maximum(spots.sum(0), 1e-9)
                area = float(spots.sum((1, 2)).mean())
                maps[name] = np.repeat((density / (area * channels))[..., None], channels, -1)
        return maps

    def spots(self, height: int, width: int) -> FloatArray:
        """Return the spots ``[lattice * lattice, height, width]``, each a Gaussian of 1 in its middle."""
        rows, columns = (
            np.linspace(0, side - 1, min(self.lattice, side)).round().astype(int) for side in (height, width)
        )
        size = 5.0 / 84.0 * min(height, width)  # radius 5 on images of 84 x 84 pixels
        at = np.stack([each.ravel() for each in np.meshgrid(rows, columns, indexing="ij")], 1)
        vertical = np.exp(-0.5 * ((np.arange(height) - at[:, :1]) / size) ** 2)
        horizontal = np.exp(-0.5 * ((np.arange(width) - at[:, 1:]) / size) ** 2)
        return np.asarray(vertical[:, :, None] * horizontal[:, None, :])

    def _changes(
        self, background: Background, steps: Transitions, name: Input, spots: FloatArray, before: FloatArray
    ) -> FloatArray:
        """Return the absolute change of the reward for each step and spot, ``[n, spots]``."""
        images = getattr(steps, FIELDS[name]).astype(np.float64)
        size = 3.0 / 84.0 * min(images.shape[1:3])
        blurred = gaussian_filter(images, (0, size, size, 0))
        whole, changes = np.ones(images.shape[1:], bool), []
        for part in np.array_split(spots, max(1, len(spots) // 16)):
            weight = part[:, None, :, :, None]
            mixed = (images * (1 - weight) + blurred * weight).reshape(-1, *images.shape[1:])
            changed = replaced(repeated(steps, len(part)), name, whole, mixed)
            changes.append(np.abs(background.reward.of(changed).reshape(len(part), len(steps)) - before))
        return np.concatenate(changes).T


METHODS = (Perturbation(),)
