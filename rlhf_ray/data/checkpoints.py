"""Checkpoints of a run: each a folder that is whole when it has its name, the last good one found by itself."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rlhf_ray.data.atomic import flush, whole_folder
from rlhf_ray.data.failures import cause, writing

KEPT = 2
"""Newest checkpoints kept: one more than needed, should the newest turn out damaged."""

MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


def save_checkpoint(folder: Path, iteration: int, write: Callable[[Path], object], unlisted: str) -> Path:
    """Let ``write`` fill a new folder, which has its name when it is whole and on the disk; then delete older ones.

    What fails leaves the checkpoints there were.

    Args:
        folder: of all checkpoints of the run.
        iteration: after which the checkpoint is taken; its name.
        write: writes the checkpoint to the folder it is given.
        unlisted: name of a folder in it that looks after itself, and whose damage does not make the checkpoint a damaged one.

    Raises:
        OSError: it cannot be written; names the file or folder.
    """
    checkpoint = folder / f"{iteration:08d}"
    for left in (*folder.glob(".tmp-*"), *folder.glob(".old-*")):  # of a process that was killed
        shutil.rmtree(left)
    with writing(checkpoint), whole_folder(checkpoint) as new:
        _fill(new, write, unlisted)
    flush(folder.parent)  # where the folder itself may be new
    for old in all_checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return checkpoint


def _fill(folder: Path, write: Callable[[Path], object], unlisted: str) -> None:
    """Have ``write`` fill the new ``folder``, and add what each file is."""
    try:
        write(folder)
    except Exception as error:
        inner = cause(error)  # of the store's actor, say
        if not isinstance(inner, OSError) and (said := re.search(r"os error (\d+)", str(inner))):  # safetensors'
            inner = OSError(int(said[1]), os.strerror(int(said[1])))
        if isinstance(inner, OSError) and inner.errno is not None:
            raise OSError(inner.errno, os.strerror(inner.errno), inner.filename) from error
        raise
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    names = {str(file.relative_to(folder)): file for file in files if unlisted not in file.relative_to(folder).parts}
    manifest = {name: _digest(file) for name, file in names.items()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose every file is as it was written; damaged ones are named in the log. None without any."""
    for checkpoint in reversed(all_checkpoints(folder)):
        damage = damaged_files(checkpoint)
        if not damage:
            return checkpoint
        logger.warning("Checkpoint %s is damaged (%s); looking for the one before.", checkpoint, ", ".join(damage))
    return None


def damaged_files(checkpoint: Path) -> list[str]:
    """The files of ``checkpoint`` that are missing or not as they were written."""
    try:
        manifest: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return [MANIFEST]
    return [
        name
        for name, digest in manifest.items()
        if not (checkpoint / name).is_file() or _digest(checkpoint / name) != digest
    ]


def all_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, the oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
