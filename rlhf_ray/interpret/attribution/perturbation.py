"""Greydanus' perturbation: blur a spot of the image and see how much the output changes (Greydanus et al. 2018, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.attribution.gradcam import NO_IMAGES
from rlhf_ray.interpret.attribution.interventions import blurred
from rlhf_ray.interpret.attribution.method import Method
from rlhf_ray.interpret.attribution.question import Maps, Question


@dataclass
class Perturbation(Method):
    """The absolute change of the output when a soft spot is blurred, for spots on a lattice, spread over the spots.

    In units of the output, on the same scale for every frame: neither squared nor divided by the frame's maximum.

    Args:
        lattice: spots per side.
    """

    lattice: int = 10
    name, title, signed = "perturbation", "Perturbation (Greydanus)", False

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply; None if it does."""
        return None if question.images else NO_IMAGES

    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``. Inputs that are no images have none: zeros."""
        before = question.values(moments)
        maps = {name: np.zeros((len(moments), *question.parts(name)[1].shape[1:])) for name in question.names}
        for name in question.images:
            height, width, channels = maps[name].shape[1:]
            spots = self.spots(height, width)
            changes = self._changes(question, moments, name, spots, before)
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
        places = np.stack([axis.ravel() for axis in np.meshgrid(rows, columns, indexing="ij")], 1)
        vertical = np.exp(-0.5 * ((np.arange(height) - places[:, :1]) / size) ** 2)
        horizontal = np.exp(-0.5 * ((np.arange(width) - places[:, 1:]) / size) ** 2)
        return np.asarray(vertical[:, :, None] * horizontal[:, None, :])

    def _changes(
        self, question: Question, moments: Any, name: str, spots: FloatArray, before: FloatArray
    ) -> FloatArray:
        """Return the absolute change of the output for each moment and spot, ``[n, spots]``."""
        images = question.arrays(moments)[name].astype(np.float64)
        smooth = blurred(images, 3.0 / 84.0 * min(images.shape[-3:-1]))
        changes = []
        for some in np.array_split(spots, max(1, len(spots) // 16)):
            weight = some.reshape(len(some), *(1,) * (images.ndim - 3), *some.shape[1:], 1)
            mixed = images * (1 - weight) + smooth * weight
            changes.append(np.abs(question.changed(moments, name, mixed) - before))
        return np.concatenate(changes).T
