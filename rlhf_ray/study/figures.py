"""A step's figures: frozen dataclasses, the values of the JSON twin that come from them, and the way back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

F = TypeVar("F")

DRAWN: dict[str, Any] = {"drawn": True}
"""Metadata of a field that only pictures and tables show: ``field(metadata=DRAWN)``."""


def values_of(figures: Any) -> Any:
    """Return figures as JSON values, by the names of their fields: numbers, texts, lists and dicts.

    A class with further values, or other names, has a ``to_json`` of its own.
    """
    if hasattr(figures, "to_json"):
        return figures.to_json()
    if dataclasses.is_dataclass(figures):
        shown = [field.name for field in dataclasses.fields(figures) if "drawn" not in field.metadata]
        return {name: values_of(getattr(figures, name)) for name in shown}
    if isinstance(figures, dict):
        return {str(name): values_of(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [values_of(value) for value in figures]
    return figures.tolist() if hasattr(figures, "tolist") else figures


def figures_from(kind: type[F], values: Any) -> F:
    """Return the figures of class ``kind`` whose values (`values_of`) were read back from JSON.

    Fields are read by their annotations; those without a value keep their default.
    """
    return cast(F, _read(kind, values))


def _read(kind: Any, values: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if values is None:
        return math.nan if kind is float else None
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.name in values]
        return cast(Any, kind)(**{name: _read(hints[name], values[name]) for name in names})
    if origin in (Union, UnionType):
        return _read(next(each for each in arguments if each is not type(None)), values)
    if origin is np.ndarray:
        return np.array(values, np.float64)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _read(arguments[1], value) for name, value in values.items()}
    if isinstance(values, list):
        fixed = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(values)
        read = [_read(*pair) for pair in zip(fixed, values, strict=True)]
        return tuple(read) if origin is tuple else read
    return values
