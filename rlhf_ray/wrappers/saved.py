"""Saved: folders that are whole or not there, and nested values with arrays in them as JSON beside an .npz. No pickle."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.flush import flush
from rlhf_ray.labelling.films import Film, FilmInfo

FORMAT = "rlhf_ray.wrapper/1"
NAME = "state.json"
"""The file that shows that `whole_folder` wrote a folder."""


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of ``path`` once it is written and on the disk.

    Raises:
        ValueError: ``path`` holds something else than what was saved here before.
    """
    if path.exists() and not (path / NAME).exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there and was not written by save(); name another folder.")
    new, old = path.with_name(f".tmp-{path.name}"), _replaced(path)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    for written in [new, *new.rglob("*")]:
        flush(written)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)
    flush(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def find_folder(path: Path) -> Path:
    """``path``, or what it was about to replace where a process was killed in between."""
    return _replaced(path) if not path.exists() and _replaced(path).exists() else path


def _replaced(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")


def write_state(state: dict[str, Any], folder: Path) -> None:
    """Write ``state``: dicts, lists and tuples, nested, of arrays, films, numbers, strings and None."""
    arrays: list[Array] = []
    plain = {"format": FORMAT, "state": _plain(state, arrays)}
    (folder / NAME).write_text(json.dumps(plain) + "\n")
    np.savez(folder / "state.npz", **{str(i): array for i, array in enumerate(arrays)})  # type: ignore[arg-type]


def read_state(folder: Path) -> dict[str, Any]:
    """The inverse of `write_state`.

    Raises:
        ValueError: it is of a format that this version does not read.
    """
    plain = json.loads((folder / NAME).read_text())
    if plain.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {plain.get('format')!r}; this version reads {FORMAT!r}.")
    with np.load(folder / "state.npz") as arrays:
        state: dict[str, Any] = _nested(plain["state"], arrays)
    return state


def _plain(value: Any, arrays: list[Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Film):
        sheet = _plain(np.frombuffer(value.sheet, np.uint8), arrays)
        return {"film": {"info": vars(value.info), "sheet": sheet}}
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
    if kind == "film":
        return Film(FilmInfo(**content["info"]), _nested(content["sheet"], arrays).tobytes())
    if kind == "tuple":
        return tuple(_nested(item, arrays) for item in content)
    return {_nested(key, arrays): _nested(item, arrays) for key, item in content}
