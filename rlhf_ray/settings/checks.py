"""Checks of settings. Their messages name the setting, the value and the remedy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import field
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nearest import did_you_mean
from rlhf_ray.data.registry import name_of, names_of
from rlhf_ray.data.whole import LARGEST

T = TypeVar("T")

Precision = Literal["auto", "float32", "bfloat16"]
"""Numbers of convolutions in gradient steps."""


CHANGEABLE = "changeable"
"""Key of a field's metadata: whether the setting may change during a training."""


def changeable(default: T) -> T:
    """Return a field for a setting that may change during a training, as in population-based training.

    A new value takes effect at the next iteration or fit. Checkpoints fix all other settings (networks, fragments, budgets). So
    the code must read such a setting at each use: not once in a constructor, nor into a buffer that a checkpoint restores.
    """
    value: T = field(default=default, metadata={CHANGEABLE: True})
    return value


def require(condition: bool, setting: str, value: object, rule: str) -> None:
    """Raise a `SettingError` that names ``setting``, its ``value`` and the ``rule`` unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"{setting} is {value!r}; {rule}.")


def require_known(given: Iterable[str], known: Iterable[str], group: str, inside: Sequence[str] = ()) -> None:
    """Check that the settings ``given`` are among the ``known`` ones.

    Args:
        given: names.
        known: the names that exist.
        group: whose settings they are.
        inside: names ``group.name`` of the settings in groups inside this one, which belong there.

    Raises:
        SettingError: one is unknown; the message has the nearest names.
    """
    names = list(known)
    for name in sorted(set(given) - set(names)):
        near = did_you_mean(name, [*names, *inside]) or f"it has {', '.join(names)}."
        if "." in near.partition("?")[0]:
            near += ' A group of settings is an object, such as "ppo": {"gamma": 0.99}.'
        raise SettingError(f"{group} has no setting {name}; {near}")


def require_layers(hidden: tuple[int, ...], setting: str) -> None:
    """Check the number of units of each hidden layer."""
    valid = len(hidden) >= 1 and all(units >= 1 for units in hidden)
    require(valid, setting, hidden, "give at least one hidden layer, each with 1 or more units")


def take_values(settings: object, group: str = "") -> None:
    """Give fields values of their kinds: whole numbers such as 1e5 from JSON, and one value where several may be given.

    Raises:
        SettingError: a field that takes whole numbers, numbers, or true and false has something else.
    """
    for name, kind in get_type_hints(type(settings)).items():
        value, setting = getattr(settings, name), f"{group}.{name}" if group else name
        kinds = {part for inner in (get_args(kind) or (kind,)) for part in (get_args(inner) or (inner,))}
        many = get_origin(kind) is tuple
        if many and not isinstance(value, list | tuple):
            value = (value,)
        if kinds & {int, float}:
            value = tuple(_number(inner, kinds, setting) for inner in value) if many else _number(value, kinds, setting)
        require(kind is not bool or isinstance(value, bool), setting, value, "it must be true or false")
        object.__setattr__(settings, name, value)


def _number(value: Any, kinds: set[Any], setting: str) -> Any:
    """Check a number; return an int in the place of a whole number of another type, where ``kinds`` allow."""
    if (isinstance(value, str) and value in kinds) or (value is None and NoneType in kinds):
        return value
    words = sorted(kind for kind in kinds if isinstance(kind, str)) + ["None"] * (NoneType in kinds)
    rule = ", or ".join([f"it must be a {'' if float in kinds else 'whole '}number", *words])
    require(isinstance(value, Real) and not isinstance(value, bool), setting, value, rule)
    if (LARGEST if int in kinds else sys.float_info.max) < abs(value) < math.inf:
        rule = "it must be at most 2**63 - 1" if int in kinds else "it must be a finite number"
        require(False, setting, f"about {'-' if value < 0 else ''}1e{math.log10(abs(value)):.0f}", rule)
    if int in kinds and float(value).is_integer() and (float not in kinds or value > 1 or isinstance(value, Integral)):
        return int(value)
    require(float in kinds, setting, value, rule)
    return value


def require_values(settings: object, group: str, unbounded: str | None = None) -> None:
    """Check each field of ``settings``: a `Literal` has one of its values, and a number is finite, unless it is ``unbounded``.

    Whole numbers may be floats, such as 1e5 (`take_values`).
    """
    take_values(settings, group)
    for name, kind in get_type_hints(type(settings)).items():
        choices, value = get_args(kind) if get_origin(kind) is Literal else (), getattr(settings, name)
        require(not choices or value in choices, f"{group}.{name}", value, f"it must be one of {', '.join(choices)}")
        infinite = isinstance(value, float) and name != unbounded and not math.isfinite(value)
        require(not infinite, f"{group}.{name}", value, "it must be a finite number")


def name_parts(settings: object, *names: str) -> None:
    """Replace parts given as objects by their names (`rlhf_ray.data.registry`)."""
    for name in names:
        object.__setattr__(settings, name, name_of(getattr(settings, name)))


def name_several(settings: object, name: str) -> None:
    """Replace the parts in a setting that takes several by their names."""
    object.__setattr__(settings, name, names_of(getattr(settings, name)))
