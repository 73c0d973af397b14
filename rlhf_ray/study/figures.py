"""A step's figures: frozen dataclasses, and the values of the JSON twin that come from them."""

from __future__ import annotations

import dataclasses
from typing import Any

DRAWN: dict[str, Any] = {"drawn": True}
"""Metadata of a field that only pictures and tables show: ``field(metadata=DRAWN)``."""


def values_of(figures: Any) -> Any:
    """Return figures as JSON values, by the names of their fields: numbers, texts, lists and dicts.

    A class with further values, or other names, has a ``to_json`` of its own.
    """
    if hasattr(figures, "to_json"):
        return figures.to_json()
    if dataclasses.is_dataclass(figures):
        return fields_of(figures)
    if isinstance(figures, dict):
        return {str(name): values_of(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [values_of(value) for value in figures]
    return figures.tolist() if hasattr(figures, "tolist") else figures


def fields_of(figures: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, but those that are only drawn and those ``without``."""
    return {
        field.name: values_of(getattr(figures, field.name))
        for field in dataclasses.fields(figures)
        if "drawn" not in field.metadata and field.name not in without
    }
