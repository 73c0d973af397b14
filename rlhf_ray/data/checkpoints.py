"""Checkpoint folders of a run: written atomically, verified by a manifest, pruned to the newest."""

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
from rlhf_ray.data.signed import SIGNATURE
from rlhf_ray.data.strays import without_strays

KEPT = 2
"""Number of newest checkpoints kept: one spare in case the newest is damaged."""

MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


def save_checkpoint(folder: Path, iteration: int, write: Callable[[Path], object], unlisted: str) -> Path:
    """Write a checkpoint atomically, then delete old ones. On failure, the existing checkpoints stay as they are.

    Args:
        folder: the run's checkpoint folder.
        iteration: number of finished iterations; the checkpoint's name.
        write: fills the folder it is given.
        unlisted: name of a subfolder that verifies itself and is excluded from the manifest.

    Raises:
        OSError: the write failed; names the file or folder.
    """
    checkpoint = folder / f"{iteration:08d}"
    for left in (*folder.glob(".tmp-*"), *folder.glob(".old-*")):  # left by a killed process
        shutil.rmtree(left)
    with writing(checkpoint), whole_folder(checkpoint) as new:
        try:
            write(new)
        except Exception as error:
            inner = cause(error)  # the write may run in an actor
            safetensors = re.search(r"os error (\d+)", str(inner))
            number = inner.errno if isinstance(inner, OSError) else int(safetensors[1]) if safetensors else None
            if number is None:
                raise
            raise OSError(number, os.strerror(number), getattr(inner, "filename", None)) from error
        add_manifest(new, unlisted)
    flush(folder.parent)  # the folder itself may be new
    for old in all_checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return checkpoint


def add_manifest(folder: Path, unlisted: str) -> None:
    """Write the manifest of a checkpoint: a hash per file, except below the subfolder ``unlisted``."""
    files = {file.relative_to(folder): file for file in without_strays(folder.rglob("*")) if file.is_file()}
    listed = {str(name): file for name, file in files.items() if unlisted not in name.parts}
    manifest = {name: _digest(file) for name, file in listed.items() if name not in (MANIFEST, SIGNATURE)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest intact checkpoint, or None. Logs damaged ones."""
    for checkpoint in reversed(all_checkpoints(folder)):
        damage = damaged_files(checkpoint)
        if not damage:
            return checkpoint
        logger.warning("Checkpoint %s is damaged (%s); trying the previous one.", checkpoint, ", ".join(damage))
    return None


def damaged_files(checkpoint: Path) -> list[str]:
    """Return the files of ``checkpoint`` that are missing or differ from the manifest."""
    try:
        manifest: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return [MANIFEST]
    files = {name: checkpoint / name for name in manifest}
    return [name for name, file in files.items() if not file.is_file() or _digest(file) != manifest[name]]


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
