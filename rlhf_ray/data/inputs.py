"""Check given data against the spaces of a model or an environment: shapes, types, and the scale of the numbers.

Data of other programs may hold the same observations in other units: images from 0 to 1, degrees for radians, channels first. A
model returns a number for them too, and the number is wrong. What can't come from the space is refused; what may, but looks as if
it did not, is logged once.
"""

import logging
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of, one_line

ROUNDING = 1e-5
"""By how much a value may exceed its bounds, in multiples of the bound: float32 arithmetic that is meant to end there."""
BYTE = 255

logger = logging.getLogger(__name__)

_said: set[tuple[str, str]] = set()
"""What was logged of which data in this process."""


def check_recorded(
    observations: Array,
    actions: Array,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    what: str,
    *,
    axes: int = 1,
    own: bool = False,
) -> None:
    """Check that recorded observations and actions are those of an environment.

    Args:
        observations: with any ``axes`` before the observations' own.
        actions: with as many before the actions' own.
        spaces: the environment's observation and action space.
        what: has them, for the error.
        axes: leading axes of the arrays.
        own: whether the environment itself returned them. It may leave its declared bounds: that is logged, not refused.

    Raises:
        SettingError: shapes differ; values are NaN or infinite, no numbers of the spaces' types, or on another scale.
    """
    seen, acted, (space_seen, space) = observations.shape[axes:], actions.shape[axes:], spaces
    if (seen, acted) != (space_seen.shape, space.shape):
        raise SettingError(
            f"{what} have observations of shape {seen} and actions of shape {acted}; the environment has "
            f"{one_line(space_seen)} and {one_line(space)}. {shape_remedy(seen, space_seen.shape)}"
        )
    check_observations(observations, space_seen, what, axes=axes, own=own)
    _check_finite(actions, f"{what} have actions")
    check_choices(actions, space, what)
    if isinstance(space, gym.spaces.MultiBinary) and actions.size and not np.isin(actions, (0, 1)).all():
        raise SettingError(
            f"{what} have actions from {actions.min()} to {actions.max()}; the environment's are 0 or 1, {space}."
        )
    if isinstance(space, gym.spaces.Box) and actions.size:
        share, place = _outside(actions, space, axes)
        if share:
            _say(what, "actions", f"actions outside of their bounds in {share:.2g} of the steps: {place}.")


def check_observations(values: Array, space: gym.Space[Any], what: str, *, axes: int = 1, own: bool = False) -> None:
    """Check observations, as `check_recorded` does.

    Raises:
        SettingError: they can't come from ``space``.
    """
    if not values.size:
        return
    if values.shape[axes:] != space.shape:
        raise SettingError(
            f"{what} have observations of shape {values.shape[axes:]}; the space is {one_line(space)}. "
            f"{shape_remedy(values.shape[axes:], space.shape)}"
        )
    _check_finite(values, f"{what} have observations")
    if choices_of(space):
        check_choices(values, space, what, "observations")
    if not isinstance(space, gym.spaces.Box):
        return
    wanted, shown = np.dtype(space.dtype), one_line(space)
    if values.dtype.kind not in "biuf":
        raise SettingError(f"{what} have observations of type {values.dtype}; the space is {shown}: give numbers.")
    if wanted.kind in "iu" and values.dtype != wanted:
        with np.errstate(invalid="ignore", over="ignore"):
            other = values.astype(wanted) != values
        if other.any():
            raise SettingError(
                f"{what} have observations such as {values[other][0]:.6g}, which is not a {wanted}; the space is {shown}. Give the "
                "numbers that the environment returns, not scaled ones."
            )
    if wanted.kind == "f" and values.dtype == np.uint8 and not np.isfinite(space.high).all():
        raise SettingError(
            f"{what} have observations of type uint8, and the environment's are {wanted} without bounds, so their scale is "
            f"unknown: give them as the environment returns them, as {wanted}."
        )
    _check_scale(values, space, what, axes, own)


def check_choices(values: Array, space: gym.Space[Any], what: str, name: str = "actions") -> None:
    """Check that the actions or observations ``[…, *shape]`` are of a Discrete or MultiDiscrete space. Others are not checked.

    Raises:
        SettingError: they are not.
    """
    if not (choices := choices_of(space)) or not values.size:
        return
    if values.dtype.kind not in "iu":
        raise SettingError(
            f"{what} have {values.dtype} {name}; the environment's are whole numbers, {space}: save integers."
        )
    first = np.asarray(space.start).reshape(-1)  # type: ignore[attr-defined]  # both kinds have it
    choice = values.reshape(-1, len(choices))
    least, most, last = choice.min(0), choice.max(0), first + choices - 1
    for column in np.flatnonzero((least < first) | (most > last))[:1]:
        raise SettingError(
            f"{what} have {name} from {least[column]} to {most[column]}; the environment's are {first[column]} to {last[column]}."
        )


def in_type(values: Array, space: gym.Space[Any]) -> Array:
    """Return checked observations in the type of an integer space, such as bytes that were saved as int64 or float."""
    wanted = np.dtype(space.dtype)
    return values if wanted.kind not in "iu" or values.dtype == wanted else values.astype(wanted)


def _check_scale(values: Array, space: gym.spaces.Box, what: str, axes: int, own: bool) -> None:
    share, place = _outside(values, space, axes)
    if share > 0.5 and not own:
        raise SettingError(
            f"{what} have observations on another scale: {place}, in {share:.0%} of the steps. Give them in the environment's "
            "units."
        )
    if share:
        said = f"observations outside of their bounds in {share:.2g} of the steps: {place}. Check their units."
        _say(what, "bounds", said)
    if len(space.shape) == 3 and bool((space.high == BYTE).all()) and values.max() <= 1:
        said = (
            f"images whose values are all {values.min():.3g} to {values.max():.3g}, where their space has 0 to {BYTE}: they are "
            f"black, or were scaled to 0 to 1. Multiply those by {BYTE}"
        )
        if values.dtype.kind == "f" and np.dtype(space.dtype) == np.uint8:
            raise SettingError(f"{what} have {said}; save others as whole numbers.")
        _say(what, "black", f"{said}.")


def _outside(values: Array, space: gym.spaces.Box, axes: int) -> tuple[float, str]:
    """Return the largest share of steps in which one number is outside of its bounds, and that number in words."""
    rows = values.reshape(-1, *values.shape[axes:])
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    low, high = (
        bound + sign * ROUNDING * np.where(np.isfinite(bound), np.maximum(np.abs(bound), 1.0), 0.0)
        for bound, sign in ((low, -1), (high, 1))
    )
    least, most = rows.min(0), rows.max(0)
    if not ((least < low) | (most > high)).any():
        return 0.0, ""
    share = np.mean((rows < low) | (rows > high), 0)
    at = np.unravel_index(int(share.argmax()), share.shape)
    place = ", ".join(map(str, map(int, at)))
    bounds = f"{float(space.low[at]):.6g} to {float(space.high[at]):.6g}"
    return float(share[at]), (
        f"number {place} is {float(least[at]):.6g} to {float(most[at]):.6g}, and its space has {bounds}"
    )


def _check_finite(values: Array, what: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise SettingError(f"{what} that are NaN or infinite; remove them.")


def shape_remedy(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> str:
    """Say how observations of another shape become those of the environment."""
    if wanted is not None and len(shape) == 3 and shape != wanted and (*shape[1:], shape[0]) == wanted:
        return "They are channels first: move the channels to the end, np.moveaxis(images, -3, -1)."
    return "Use the environment they were recorded in."


def _say(what: str, kind: str, text: str) -> None:
    if (what, kind) not in _said:
        _said.add((what, kind))
        logger.warning("%s have %s", what, text)
