"""Checks observations against their space, part by part, and converts them to its dtypes.

=====================================================================  ======================================================
an observation, or a part of one, that                                 is
=====================================================================  ======================================================
has another structure or shape, is NaN or infinite, or is no number    refused
is of another dtype, and a value is too large for the declared one     refused
has a value too large for float32, which networks compute with         refused
is of another dtype, and a value is not whole as the declared one is   refused
is a choice that its Discrete, MultiDiscrete or MultiBinary lacks      refused
is of another dtype otherwise                                          converted, rounding floats; said once per environment
is outside the bounds of its Box                                       kept; said once per environment, with the value
=====================================================================  ======================================================
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.inputs import ROUNDING

logger = logging.getLogger(__name__)

_said: set[tuple[str, str]] = set()
"""What was said of which environment in this process."""


class UnfitError(Exception):
    """An observation does not fit its space: what is wrong."""


class Say:
    """Logs each kind of oddity of the environment ``name`` once in this process."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, kind: str, what: str) -> None:
        """Log ``what``, unless another oddity of this ``kind`` was logged."""
        if (self.name, kind) not in _said:
            _said.add((self.name, kind))
            logger.warning("Environment %s: %s", self.name, what)


LARGEST = float(np.finfo(np.float32).max)
"""The largest reward: RLlib's batches, and what networks learn, are float32."""


def fitting(space: gym.Space[Any], say: Say) -> Callable[[Any], Any]:
    """Return a function that checks an observation of ``space`` and returns a copy of it, with the dtypes of the space.

    The space may be of a batch. ``say`` is called for what is odd, but no error; for one, the function raises `UnfitError`.
    """
    return _fitting(space, "", say)


def _fitting(space: gym.Space[Any], part: str, say: Say) -> Callable[[Any], Any]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _Parts(space, part, say)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return _Numbers(space, part, say)
    return copy.deepcopy  # of a kind that has no view anyway


class _Parts:
    """Checks the parts of a Dict or Tuple."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, part: str, say: Say):
        named = isinstance(space, spaces.Dict)
        inner_spaces = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        self.part, self.named = part, named
        self.checks = {name: _fitting(inner, f"{part}[{name!r}]", say) for name, inner in inner_spaces.items()}

    def __call__(self, given: Any) -> Any:
        if self.named:
            if not isinstance(given, Mapping):
                raise UnfitError(f"{_an(self.part)} that is no mapping but {short(given)}; its space is a Dict")
            if wrong := set(self.checks) ^ set(given):
                names = ", ".join(map(repr, self.checks))
                raise UnfitError(f"{_an(self.part)} that has or lacks {sorted(wrong)[0]!r}; its space has {names}")
            return {name: check(given[name]) for name, check in self.checks.items()}
        if not isinstance(given, tuple | list) or len(given) != len(self.checks):
            raise UnfitError(f"{_an(self.part)} that is no tuple of {len(self.checks)} but {short(given)}")
        return tuple(check(value) for check, value in zip(self.checks.values(), given, strict=True))


class _Numbers:
    """Checks a Box, or the choices of a Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, space: gym.Space[Any], part: str, say: Say):
        self.space, self.part, self.say = space, part, say
        self.dtype, self.shape, self.told = np.dtype(space.dtype), space.shape or (), False
        self.wide = self.dtype.kind == "f" and not np.can_cast(self.dtype, np.float32)
        self.chosen, self.bounded = not isinstance(space, spaces.Box), True
        if isinstance(space, spaces.Box):
            low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
            whole = self.dtype.kind in "iu" and (
                low.min(initial=0) <= np.iinfo(self.dtype).min and high.max(initial=0) >= np.iinfo(self.dtype).max
            )
            self.bounded = not whole and bool(np.isfinite(low).any() or np.isfinite(high).any())
            size = np.maximum(np.where(np.isfinite(low), abs(low), 0), np.where(np.isfinite(high), abs(high), 0))
            slack = ROUNDING * np.where(size > 0, size, 1.0) * (self.dtype.kind == "f")
            # Of the observations' dtype, because comparing with another one costs a conversion.
            with np.errstate(over="ignore"):  # the largest float and a little more: infinite, so no bound
                self.low, self.high = (low - slack).astype(self.dtype), (high + slack).astype(self.dtype)
        else:
            count = space.n if isinstance(space, spaces.Discrete) else getattr(space, "nvec", 2)
            self.low = np.asarray(getattr(space, "start", 0))
            self.high = self.low + count - 1

    def __call__(self, given: Any) -> Any:
        values: Array = given
        if not (isinstance(given, np.ndarray) and given.dtype == self.dtype):
            values = as_array(given, self.part)
            if values.dtype.kind not in "biuf":
                raise UnfitError(f"{_an(self.part)} that is not an array of numbers: {short(given)}")
        if values.shape != self.shape:
            raise UnfitError(f"{_an(self.part)} of shape {values.shape}; its observation space has shape {self.shape}")
        if values.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(values), axis=None):
            place = _first(~np.isfinite(values))
            raise UnfitError(f"{_an(self.part)} that is {values[place]} at {_place(place)}")
        values = self._converted(values)
        if self.bounded:
            self._check_bounds(values)
        return values if values.shape or not self.chosen else values[()]

    def _check_bounds(self, values: Array) -> None:
        """Refuse a choice that there isn't; say once that a number is outside its bounds."""
        out = (values < self.low) | (values > self.high)
        if not np.logical_or.reduce(out, axis=None):
            return
        place = _first(out)
        if self.chosen:
            raise UnfitError(f"{_an(self.part)} with the value {values[place]}, which {self.space} does not have")
        self.bounded = False
        where = f" at {_place(place)}" if place else ""
        self.say(
            f"bounds{self.part}",
            f"an observation{_of(self.part)} is {values[place]:.6g}{where}, outside the bounds of its space there, "
            f"{self.space.low[place]:.6g} to {self.space.high[place]:.6g}. Networks may be scaled to these bounds: correct the "  # type: ignore[attr-defined]
            "space.",
        )

    def _converted(self, values: Array) -> Array:
        """Return a copy of the space's dtype."""
        why = ""
        try:
            cast = converted(values, self.dtype)
            if self.wide:
                why = ", which networks compute with"
                converted(cast, np.dtype(np.float32))
        except UnfitError as error:
            raise UnfitError(f"{_an(self.part)} {error}{why}") from None
        if values.dtype != self.dtype and not self.told and (values.dtype.kind == "f" or not self.chosen):
            self.told = True
            self.say(
                f"dtype{self.part}",
                f"observations{_of(self.part)} are {values.dtype}, but their space says {self.dtype}. They are converted; return "
                "that dtype, or correct the space, if this loses digits that matter.",
            )
        return cast


def plain(value: Any) -> Any:
    """Return what numpy can read of a tensor of torch, wherever it is and whatever its gradient; all else as it is."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def copied(value: Any) -> Any:
    """Return a copy of an observation; of a tensor, one without its gradient: with it, many can't be copied."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, Mapping):
        return {name: copied(part) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return value.detach().clone() if hasattr(value, "detach") else copy.deepcopy(value)


def plain_number(value: Any) -> float:
    """Return a number that an environment gives, or an array of one.

    Raises:
        Exception: it is none; a text of one is none either.
    """
    number = value.item() if isinstance(value, np.ndarray) else plain(value)
    if isinstance(number, str | bytes):
        raise TypeError(number)
    return float(number)


def plain_end(value: Any, name: str) -> bool:
    """Return `plain_ends` of one environment."""
    return value if value is True or value is False else bool(plain_ends(value, name)[0])


def plain_ends(values: Any, name: str, copies: int = 1) -> BoolArray:
    """Return whether the episodes of ``copies`` environments are over, ``[copies]``; ``name``: terminated or truncated.

    Raises:
        UnfitError: a value is neither True nor False.
    """
    array = np.asarray(plain(values))
    says = array.dtype.kind == "b" or (array.dtype.kind in "iuf" and bool(((array == 0) | (array == 1)).all()))
    if not says or array.size != copies:
        raise UnfitError(f"{name}={short(values)}; it must be True or False{'' if copies == 1 else ' for each copy'}")
    return array.astype(bool).reshape(copies)


def as_array(given: Any, part: str = "") -> Array:
    """Return an observation, or the ``part`` of one, as an array.

    Raises:
        UnfitError: it is none.
    """
    try:
        return np.asarray(plain(given))
    except Exception:  # whatever an object's `__array__` raises
        raise UnfitError(f"{_an(part)} that is not an array: {short(given)}") from None


def converted(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of ``values`` of ``dtype``, with floats rounded.

    Raises:
        UnfitError: a value is too large for ``dtype``, or not whole where that is an integer.
    """
    if values.dtype == dtype:
        return values.copy()
    with np.errstate(all="ignore"):
        cast: Array = values.astype(dtype)
    wrong = np.isfinite(values) & ~np.isfinite(cast) if dtype.kind == "f" else cast != values
    if wrong.any():
        raise UnfitError(f"of {values.dtype}, and its value {values[_first(wrong)]} is not a {dtype}")
    return cast


def short(value: Any) -> str:
    """Return a short text of ``value`` in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first(where: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])


def _place(at: tuple[int, ...]) -> str:
    return str(at[0] if len(at) == 1 else at)


def _an(part: str) -> str:
    return f"an observation{_of(part)}"


def _of(part: str) -> str:
    return f", part {part}," if part else ""
