"""Atomic writes: a file, a folder or a line is written completely or not at all, and is durable when the call returns."""

import contextlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rlhf_ray.data.failures import writing


def flush(path: Path) -> None:
    """Flush the file ``path``, or the entries of the folder ``path``, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that takes the name ``path`` once it is complete. On failure, the existing file stays as it is.

    A killed process may leave a ``.tmp-`` file behind: see `left_over`.

    Args:
        path: the file; its folder must exist.
        mode: permission bits before the umask, set from the start.
        durable: flush file and folder (milliseconds each). Use False for files that can be recreated.

    Raises:
        OSError: the write failed; names ``path``.
    """
    temporary = path.with_name(f".tmp-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with writing(path), open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as sink:
            yield sink
            sink.flush()
            if durable:
                os.fsync(sink.fileno())
        os.replace(temporary, path)
        if durable:
            flush(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)
        raise


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the content of the file ``path`` atomically: see `whole_file`."""
    with whole_file(path, mode) as sink:
        sink.write(text.encode())


def append(path: Path, data: bytes) -> None:
    """Append ``data`` to the file ``path``, completely or not at all.

    Raises:
        OSError: the write failed; names the file.
    """
    before = path.stat().st_size if path.exists() else 0
    try:
        with writing(path), path.open("ab") as file:
            file.write(data)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, before)
        raise


def left_over(name: str) -> bool:
    """Return whether ``name`` is a temporary file of `whole_file` from a dead process on this machine."""
    match = re.match(r"\.tmp-(.+)-(\d+)-[0-9a-f]{8}$", name)
    if match is not None and match[1] == socket.gethostname():
        try:
            os.kill(int(match[2]), 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
    return False


@contextlib.contextmanager
def whole_folder(path: Path, keep_old: Path | None = None) -> Iterator[Path]:
    """Open a new folder that replaces ``path`` once its content is on disk. On failure, the existing folder stays as it is.

    A process killed between the two renames leaves the old folder where `find_folder` finds it (or at ``keep_old``). A process
    killed earlier may leave a ``.tmp-`` folder, which the next write of ``path`` deletes.

    Args:
        path: the folder.
        keep_old: where to move the old folder; None deletes it.

    Raises:
        OSError: the write failed.
    """
    new, old = path.with_name(f".tmp-{path.name}"), keep_old or _replaced(path)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        for written in [new, *new.rglob("*")]:
            flush(written)
    except BaseException:  # also Ctrl-C
        shutil.rmtree(new, ignore_errors=True)
        raise
    if path.exists():
        if keep_old is None:
            shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)
    flush(path.parent)
    if keep_old is None:
        shutil.rmtree(old, ignore_errors=True)


def find_folder(path: Path) -> Path:
    """Return ``path``, or the folder that an interrupted `whole_folder` was replacing."""
    return _replaced(path) if not path.exists() and _replaced(path).exists() else path


def _replaced(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")
