"""Interventions: change a part of the inputs and see how much the output changes. What attributions have to agree with.

Occlusion and Greydanus' perturbation are maps of such changes. They need no gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.attribution.question import Maps, Method, Question

DRAWS = 8
"""Donors for each moment."""
OF_IMAGES = ("blur", "inpaint")
"""Fills that need images."""
NO_IMAGES = "The inputs are not images."


def filled(fill: str, question: Question, moments: Any, name: str, mask: BoolArray) -> Array:
    """Return what a part of an input is replaced with, ``[draws, n, *shape]``; only values within its mask count.

    ``typical``: the background's mean, for cells the most frequent code; ``donor``: what other moments have there, always values
    that occur; ``blur``: the blurred image; ``inpaint``: a smooth continuation of the image around the part.
    """
    actual = question.arrays(moments)[name]
    if fill == "typical":
        return np.broadcast_to(question.usual(name), actual.shape)[None]
    if fill == "donor":
        values = question.arrays(question.background)[name]
        return np.asarray(values[question.rng(f"donors of {name}").integers(len(values), size=(DRAWS, len(moments)))])
    images, side = actual.astype(np.float64), min(actual.shape[-3:-1])
    if fill == "blur":
        return blurred(images, max(1.0, side / 16))[None]
    known = np.broadcast_to(~mask, images.shape[1:])[None]
    size = max(1.0, side / 8)
    weight = blurred(known.astype(np.float64), size)
    return np.asarray(blurred(images * known, size) / np.maximum(weight, 1e-6))[None]


def blurred(images: FloatArray, size: float) -> FloatArray:
    """Blur images ``[…, height, width, channels]`` by a Gaussian of ``size`` pixels."""
    from scipy.ndimage import gaussian_filter  # takes a third of a second to import, which training need not wait for

    return np.asarray(gaussian_filter(images, size, axes=(-3, -2)))


@dataclass(frozen=True)
class PartEffects:
    """Effects of replacing each part of each input, ``[n, parts]``: means over draws."""

    signed: FloatArray  # the output before minus the output after
    size: FloatArray  # the absolute difference


def part_effects(question: Question, moments: Any, fill: str = "donor") -> PartEffects:
    """Replace each part of each input, in the order of `Question.part_names`, and measure how much the output changes.

    ``fill`` is what stands in place of the part: see `filled`.

    Raises:
        SettingError: ``fill`` needs images, and there are none.
    """
    if fill in OF_IMAGES and not question.images:
        raise SettingError(f"fill is {fill!r}, which needs images; use 'donor' or 'typical'.")
    before, signed, size = question.values(moments), [], []
    for name, actual in question.arrays(moments).items():
        own = "donor" if fill in OF_IMAGES and name not in question.images else fill
        values: Array | None = None
        for mask in question.parts(name)[1]:
            if values is None or own == "inpaint":
                values = filled(own, question, moments, name, mask)
            difference = before - question.changed(moments, name, np.where(mask, values, actual))
            signed.append(difference.mean(0))
            size.append(np.abs(difference).mean(0))
    return PartEffects(np.stack(signed, 1), np.stack(size, 1))


def input_effects(question: Question, moments: Any) -> dict[str, FloatArray]:
    """Exchange each whole input with other moments' and measure the output's absolute change, ``[n]`` for each input.

    Flags (the end of the episode) are switched instead: few moments have one.
    """
    before, effects = question.values(moments), {}
    for name, actual in question.arrays(moments).items():
        flag = actual.dtype == bool
        values = ~actual[None] if flag else filled("donor", question, moments, name, np.ones(1, bool))
        effects[name] = np.abs(before - question.changed(moments, name, values)).mean(0)
    return effects


@dataclass
class Occlusion(Method):
    """What the output loses when a part is replaced (by ``fill``: see `filled`), spread evenly over the part."""

    fill: str = "typical"

    def __post_init__(self) -> None:
        self.name, self.title = f"occlusion_{self.fill}", f"Occlusion ({self.fill})"

    def why_not(self, question: Question) -> str | None:
        return NO_IMAGES if self.fill in OF_IMAGES and not question.images else None

    def attribute(self, question: Question, moments: Any) -> Maps:
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


@dataclass
class Perturbation(Method):
    """The absolute change of the output when a soft spot of an image is blurred, spread over the spot (Greydanus et al. 2018).

    In units of the output, on the same scale for every frame: neither squared nor divided by the frame's maximum. There are
    ``lattice`` spots per side. Inputs that are no images have maps of zeros.
    """

    lattice: int = 10
    name, title, signed = "perturbation", "Perturbation (Greydanus)", False

    def why_not(self, question: Question) -> str | None:
        return None if question.images else NO_IMAGES

    def attribute(self, question: Question, moments: Any) -> Maps:
        before = question.values(moments)
        maps = {name: np.zeros((len(moments), *question.parts(name)[1].shape[1:])) for name in question.names}
        for name in question.images:
            height, width, channels = maps[name].shape[1:]
            images = question.arrays(moments)[name].astype(np.float64)
            smooth = blurred(images, 3.0 / 84.0 * min(height, width))
            spots, changes = self._spots(height, width), []
            for some in np.array_split(spots, max(1, len(spots) // 16)):
                weight = some.reshape(len(some), *(1,) * (images.ndim - 3), height, width, 1)
                mixed = images * (1 - weight) + smooth * weight
                changes.append(np.abs(question.changed(moments, name, mixed) - before))
            # Spots overlap: each pixel gets the mean of those that cover it, weighted by how much they cover it.
            density = np.einsum("kn,khw->nhw", np.concatenate(changes), spots) / np.maximum(spots.sum(0), 1e-9)
            area = float(spots.sum((1, 2)).mean())
            maps[name] = np.repeat((density / (area * channels))[..., None], channels, -1)
        return maps

    def _spots(self, height: int, width: int) -> FloatArray:
        """Return the spots ``[spots, height, width]``, each a Gaussian of 1 in its middle."""
        rows, columns = (
            np.linspace(0, side - 1, min(self.lattice, side)).round().astype(int) for side in (height, width)
        )
        size = 5.0 / 84.0 * min(height, width)  # radius 5 on images of 84 x 84 pixels
        places = np.stack([axis.ravel() for axis in np.meshgrid(rows, columns, indexing="ij")], 1)
        vertical = np.exp(-0.5 * ((np.arange(height) - places[:, :1]) / size) ** 2)
        horizontal = np.exp(-0.5 * ((np.arange(width) - places[:, 1:]) / size) ** 2)
        return np.asarray(vertical[:, :, None] * horizontal[:, None, :])
