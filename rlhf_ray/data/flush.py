"""Flushing: making sure that a file, or the names in a folder, are on the disk and not only in memory."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Return when the file ``path``, or the folder's list of names, is on the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
