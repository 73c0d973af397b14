"""Nested values with arrays, saved as JSON and .npz. No pickle."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array

FORMAT = "rlhf_ray.nested/1"

NAME = "state.json"


def write_nested(value: dict[str, Any], folder: Path) -> None:
    """Write ``state.json`` and ``state.npz`` into ``folder``.

    Args:
        value: nested dicts, lists and tuples of arrays, numbers, strings and None.
        folder: an existing folder.
    """
    arrays: list[Array] = []
    plain = {"format": FORMAT, "state": _plain(value, arrays)}
    (folder / NAME).write_text(json.dumps(plain) + "\n")
    np.savez(folder / "state.npz", **{str(i): array for i, array in enumerate(arrays)})  # type: ignore[arg-type]


def read_nested(folder: Path) -> dict[str, Any]:
    """Read what `write_nested` wrote.

    Raises:
        ValueError: this version doesn't support the format.
    """
    plain = json.loads((folder / NAME).read_text())
    if plain.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {plain.get('format')!r}; this version reads {FORMAT}.")
    with np.load(folder / "state.npz") as arrays:
        value: dict[str, Any] = _nested(plain["state"], arrays)
    return value


def _plain(value: Any, arrays: list[Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {"dict": [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    return value


def _nested(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [_nested(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[str(content)]
    if kind == "tuple":
        return tuple(_nested(item, arrays) for item in content)
    return {_nested(key, arrays): _nested(item, arrays) for key, item in content}
