"""What `rlhf-ray submit --working-dir` uploads: checked first, because Ray fails or hangs with no word of the reason."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from pathlib import Path

from rlhf_ray.actors.ray_internals import UPLOAD_LIMIT, uploaded
from rlhf_ray.data.errors import SettingError

OURS = {"run.json": b'"rlhf_ray.run/', "sweep.json": b'"rlhf_ray.sweep/'}
"""File that a run or sweep keeps in its folder, and the format that the file names."""

LARGEST = 3
"""Number of large parts to name."""

REMEDY = (
    "Name what the job doesn't need in .gitignore or .rayignore (the same form, for Ray only), or give a smaller folder"
)


def check_upload(folder: Path, limit: int = UPLOAD_LIMIT) -> list[str]:
    """Check the folder that a job uploads.

    Args:
        folder: the folder.
        limit: bytes that the cluster takes.

    Returns:
        Patterns that exclude folders of runs and sweeps, which a job looks for on its node (`rlhf_ray.data.places`), and what can't
        be uploaded: pipes, sockets, devices and links to nothing, which Ray would open.

    Raises:
        SettingError: the folder is too large, or a file can't be read; names the largest ones and the remedy.
    """
    folder = folder.absolute()
    paths = uploaded(folder)
    results = {path.parent for path in paths if path.parent != folder and _of_results(path)}
    excluded, sizes = [_pattern(path.relative_to(folder)) for path in sorted(results)], {}
    for path in paths:
        if path in results or not results.isdisjoint(path.parents):
            continue
        relative = path.relative_to(folder)
        try:
            kind = path.stat()
        except OSError:
            excluded.append(_pattern(relative))  # a link to nothing
            continue
        if stat.S_ISREG(kind.st_mode):
            sizes[relative] = kind.st_size
        elif not stat.S_ISDIR(kind.st_mode):
            excluded.append(_pattern(relative))
            continue
        if not os.access(path, os.R_OK):
            raise SettingError(
                f"--working-dir is {folder}, and {relative} in it can't be read: make it readable, or name it in .rayignore."
            )
    total = sum(sizes.values())
    if total >= limit:
        folders: Counter[str] = Counter()
        for path, size in sizes.items():
            folders[f"{path.parts[0]}/" if len(path.parts) > 1 else str(path)] += size
        parts = ", ".join(f"{name} {_size(size)}" for name, size in folders.most_common(LARGEST))
        raise SettingError(
            f"--working-dir is {folder}, {_size(total)}, but Ray takes less than {_size(limit)}. The largest parts are {parts}. "
            f"{REMEDY}."
        )
    return excluded


def _of_results(path: Path) -> bool:
    """Return whether the folder of this file is a run's or a sweep's."""
    mark = OURS.get(path.name)
    return mark is not None and path.is_file() and os.access(path, os.R_OK) and mark in path.read_bytes()


def _pattern(path: Path) -> str:
    """Return the pattern of .gitignore that matches this path only."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path.as_posix())


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
