"""Interventions: change a part of a step and see how much the reward changes. What attributions have to agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import FIELDS, Background, repeated, replaced
from rlhf_ray.reward.functions import Input

DRAWS = 8
"""Donors for each step."""

Fill = Callable[[Background, Transitions, Input, BoolArray], Array]
"""Returns what a part (its mask) of an input is replaced with: ``[draws, n, *shape]``. Only values within the mask count."""


def typical(background: Background, steps: Transitions, name: Input, mask: BoolArray) -> Array:
    """Fill with the typical value: the data's mean; for cells the most frequent code."""
    own = getattr(steps, FIELDS[name])
    return np.broadcast_to(background.typical(name), own.shape)[None]


def donor(background: Background, steps: Transitions, name: Input, mask: BoolArray) -> Array:
    """Fill with what other steps have there: always values that occur."""
    values = getattr(background.data, FIELDS[name])
    rng = background.rng(f"donors of {name}")
    drawn: Array = values[rng.integers(len(values), size=(DRAWS, len(steps)))]
    return drawn


def blur(background: Background, steps: Transitions, name: Input, mask: BoolArray) -> Array:
    """Fill with the blurred image."""
    own = getattr(steps, FIELDS[name]).astype(np.float64)
    size = max(1.0, min(own.shape[1:3]) / 16)
    return np.asarray(gaussian_filter(own, (0, size, size, 0)))[None]


def inpaint(background: Background, steps: Transitions, name: Input, mask: BoolArray) -> Array:
    """Fill with a smooth continuation of the image around the part."""
    own = getattr(steps, FIELDS[name]).astype(np.float64)
    known = ~mask[None]
    size = max(1.0, min(own.shape[1:3]) / 8)
    weight = gaussian_filter(known.astype(np.float64), (0, size, size, 0))
    return np.asarray(gaussian_filter(own * known, (0, size, size, 0)) / np.maximum(weight, 1e-6))[None]


FILLS: dict[str, Fill] = {"typical": typical, "donor": donor, "blur": blur, "inpaint": inpaint}
"""What can stand in place of a part, by name. ``blur`` and ``inpaint`` need images."""


@dataclass(frozen=True)
class Effects:
    """Effects of replacing each part of each input.

    Attributes:
        signed: ``[n, parts]``: mean over draws of the reward before minus the reward after.
        size: ``[n, parts]``: mean over draws of the absolute difference.
    """

    signed: FloatArray
    size: FloatArray


def part_effects(background: Background, steps: Transitions, fill: str = "donor") -> Effects:
    """Replace each part of each input of ``steps`` and measure how much the reward changes.

    Args:
        background: reward and data.
        steps: ``n`` steps.
        fill: what stands in place of the part, a name in `FILLS`.

    Returns:
        The effects, in the order of `Background.part_names`.

    Raises:
        SettingError: ``fill`` needs images, and observations are something else.
    """
    images = background.regions is not None and background.regions.kind == "patch"
    if fill in ("blur", "inpaint") and not images:
        raise SettingError(f"fill is {fill!r}, which needs images; use 'donor' or 'typical'.")
    before, signed, size = background.reward.of(steps), [], []
    for name in background.inputs:
        of_images = name in ("state", "next_state")
        filler = FILLS[fill if of_images or fill not in ("blur", "inpaint") else "donor"]
        values: Array | None = None
        for mask in background.parts(name)[1]:
            if values is None or filler is inpaint:
                values = filler(background, steps, name, mask)
            difference = before - _after(background, steps, name, mask, values)
            signed.append(difference.mean(0))
            size.append(np.abs(difference).mean(0))
    return Effects(np.stack(signed, 1), np.stack(size, 1))


def input_effects(background: Background, steps: Transitions) -> dict[Input, FloatArray]:
    """Exchange each whole input with other steps' and measure the reward's absolute change, ``[n]`` for each input.

    The end of the episode is switched instead: few steps have one.
    """
    before, found = background.reward.of(steps), {}
    for name in background.inputs:
        switched = ~np.asarray(steps.terminated, bool)[None]
        values = switched if name == "done" else donor(background, steps, name, np.ones(1, bool))
        mask = np.ones(getattr(steps, FIELDS[name]).shape[1:], bool)
        found[name] = np.abs(before - _after(background, steps, name, mask, values)).mean(0)
    return found


def _after(background: Background, steps: Transitions, name: Input, mask: BoolArray, values: Array) -> FloatArray:
    """Return the reward after replacing a part, ``[draws, n]``."""
    draws, n = len(values), len(steps)
    changed = replaced(repeated(steps, draws), name, mask, values.reshape(draws * n, *values.shape[2:]))
    return background.reward.of(changed).reshape(draws, n)
