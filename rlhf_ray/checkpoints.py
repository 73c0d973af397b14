"""Checkpoints of a run: each a folder that is whole when it has its name, the last good one found by itself."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from rlhf_ray.flush import flush

KEPT = 2
"""Newest checkpoints kept: one more than needed, should the newest turn out damaged."""

MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


def save_checkpoint(folder: Path, iteration: int, write: Callable[[Path], object], unlisted: str) -> Path:
    """Let ``write`` fill a new folder, flush it to the disk, and give it its name; then delete older ones.

    A process that is killed leaves the checkpoints there were and perhaps a ``.tmp-`` folder, which nobody reads.

    Args:
        folder: of all checkpoints of the run.
        iteration: after which the checkpoint is taken; its name.
        write: writes the checkpoint to the folder it is given.
        unlisted: name of a folder in it that looks after itself, and whose damage does not make the checkpoint a damaged one.
    """
    checkpoint = folder / f"{iteration:08d}"
    temporary = folder / f".tmp-{checkpoint.name}"
    for left in folder.glob(".tmp-*"):
        shutil.rmtree(left)
    temporary.mkdir(parents=True)
    write(temporary)
    files = sorted(file for file in temporary.rglob("*") if file.is_file())
    names = {
        str(file.relative_to(temporary)): file for file in files if unlisted not in file.relative_to(temporary).parts
    }
    manifest = {name: _digest(file) for name, file in names.items()}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in [temporary, *temporary.rglob("*")]:
        flush(path)
    if checkpoint.exists():  # damaged, or of a run that was continued from an earlier one
        shutil.rmtree(checkpoint)
    temporary.rename(checkpoint)
    flush(folder)
    flush(folder.parent)  # where the folder itself may be new
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old)
    return checkpoint


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose every file is as it was written; damaged ones are named in the log. None without any."""
    for checkpoint in reversed(_all(folder)):
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


def _all(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, the oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
