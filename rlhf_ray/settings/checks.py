"""Checks of settings. Their messages name the setting, the value and the remedy."""

from __future__ import annotations

import math
from typing import Literal, get_args, get_origin, get_type_hints

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import name_of, names_of

Precision = Literal["auto", "float32", "bfloat16"]
"""Numbers of convolutions in gradient steps."""


def require(condition: bool, setting: str, value: object, rule: str) -> None:
    """Raise a `SettingError` that names ``setting``, its ``value`` and the ``rule`` unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"{setting} is {value!r}; {rule}.")


def require_layers(hidden: tuple[int, ...], setting: str) -> None:
    """Check the number of units of each hidden layer."""
    valid = len(hidden) >= 1 and all(units >= 1 for units in hidden)
    require(valid, setting, hidden, "give at least one hidden layer, each with 1 or more units")


def require_values(settings: object, group: str, unbounded: str | None = None) -> None:
    """Check each field of ``settings``: a `Literal` has one of its values, and a number is finite, unless it is ``unbounded``."""
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
    """Replace the parts in a setting that takes several by a tuple of their names. One part may be given by itself."""
    parts = names_of(getattr(settings, name))
    object.__setattr__(settings, name, parts if isinstance(parts, tuple) else (parts,))
