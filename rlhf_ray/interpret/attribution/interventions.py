"""Interventions: change a part of the inputs and see how much the output changes. What attributions have to agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.attribution.question import Question

DRAWS = 8
"""Donors for each moment."""
OF_IMAGES = ("blur", "inpaint")
"""Fills that need images."""

Fill = Callable[[Question, Any, str, BoolArray], Array]
"""Returns what a part (its mask) of an input is replaced with: ``[draws, n, *shape]``. Only values within the mask count."""


def typical(question: Question, moments: Any, name: str, mask: BoolArray) -> Array:
    """Fill with the typical value: the background's mean; for cells the most frequent code."""
    return np.broadcast_to(question.usual(name), question.arrays(moments)[name].shape)[None]


def donor(question: Question, moments: Any, name: str, mask: BoolArray) -> Array:
    """Fill with what other moments have there: always values that occur."""
    values = question.arrays(question.background)[name]
    rng = question.rng(f"donors of {name}")
    drawn: Array = values[rng.integers(len(values), size=(DRAWS, len(moments)))]
    return drawn


def blur(question: Question, moments: Any, name: str, mask: BoolArray) -> Array:
    """Fill with the blurred image."""
    images = question.arrays(moments)[name].astype(np.float64)
    return blurred(images, max(1.0, min(images.shape[-3:-1]) / 16))[None]


def inpaint(question: Question, moments: Any, name: str, mask: BoolArray) -> Array:
    """Fill with a smooth continuation of the image around the part."""
    images = question.arrays(moments)[name].astype(np.float64)
    known = np.broadcast_to(~mask, images.shape[1:])[None]
    size = max(1.0, min(images.shape[-3:-1]) / 8)
    weight = blurred(known.astype(np.float64), size)
    return np.asarray(blurred(images * known, size) / np.maximum(weight, 1e-6))[None]


def blurred(images: FloatArray, size: float) -> FloatArray:
    """Blur images ``[…, height, width, channels]`` by a Gaussian of ``size`` pixels."""
    from scipy.ndimage import gaussian_filter  # takes a third of a second to import, which training need not wait for

    return np.asarray(gaussian_filter(images, size, axes=(-3, -2)))


FILLS: dict[str, Fill] = {"typical": typical, "donor": donor, "blur": blur, "inpaint": inpaint}
"""What can stand in place of a part, by name."""


@dataclass(frozen=True)
class PartEffects:
    """Effects of replacing each part of each input.

    Attributes:
        signed: ``[n, parts]``: mean over draws of the output before minus the output after.
        size: ``[n, parts]``: mean over draws of the absolute difference.
    """

    signed: FloatArray
    size: FloatArray


def part_effects(question: Question, moments: Any, fill: str = "donor") -> PartEffects:
    """Replace each part of each input and measure how much the output changes.

    Args:
        question: the function.
        moments: ``n`` moments.
        fill: what stands in place of the part, a name in `FILLS`.

    Returns:
        The effects, in the order of `Question.part_names`.

    Raises:
        SettingError: ``fill`` needs images, and there are none.
    """
    if fill in OF_IMAGES and not question.images:
        raise SettingError(f"fill is {fill!r}, which needs images; use 'donor' or 'typical'.")
    before, signed, size = question.values(moments), [], []
    for name, actual in question.arrays(moments).items():
        filler = FILLS["donor" if fill in OF_IMAGES and name not in question.images else fill]
        values: Array | None = None
        for mask in question.parts(name)[1]:
            if values is None or filler is inpaint:
                values = filler(question, moments, name, mask)
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
        values = ~actual[None] if actual.dtype == bool else donor(question, moments, name, np.ones(1, bool))
        effects[name] = np.abs(before - question.changed(moments, name, values)).mean(0)
    return effects
