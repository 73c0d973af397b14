"""Saved: folders that are whole or not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlhf_ray.data.flush import flush
from rlhf_ray.data.nested import NAME


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
