"""Atomic files: a file, a folder or a line that is written whole or not at all, and is on the disk when the call returns."""

from __future__ import annotations

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
    """Return when the file ``path``, or the folder's list of names, is on the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file to write into, which takes the name ``path`` once it is whole. What fails leaves the file there was.

    A process that is killed may leave a ``.tmp-`` file besides: see `left_over`.

    Args:
        path: of the file; its folder must exist.
        mode: who may read and write it, before the umask; holds from the first moment.
        durable: flush file and folder. Not worth it (milliseconds each) for what can be made again.

    Raises:
        OSError: it cannot be written; names ``path``.
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
    """Give the file ``path`` this content, all of it or none: see `whole_file`."""
    with whole_file(path, mode) as sink:
        sink.write(text.encode())


def append(path: Path, data: bytes) -> None:
    """Append ``data`` to the file ``path``, all of it or nothing.

    Raises:
        OSError: it cannot be written; names the file.
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
    """Whether a file of this name is what a process of this machine that is no more left unfinished in `whole_file`."""
    found = re.match(r"\.tmp-(.+)-(\d+)-[0-9a-f]{8}$", name)
    if found is None or found.group(1) != socket.gethostname():
        return False
    try:
        os.kill(int(found.group(2)), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


@contextlib.contextmanager
def whole_folder(path: Path, keep_old: Path | None = None) -> Iterator[Path]:
    """A new folder to write into, which takes the place of ``path`` once all in it is on the disk.

    What fails leaves what was there. A process that is killed between the two renames leaves it where `find_folder` finds it (or
    at ``keep_old``), and at other moments perhaps a ``.tmp-`` folder, which the next write of ``path`` clears away.

    Args:
        path: of the folder.
        keep_old: where what was there is moved; None: it is deleted.

    Raises:
        OSError: it cannot be written.
    """
    new, old = path.with_name(f".tmp-{path.name}"), keep_old or _replaced(path)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        for written in [new, *new.rglob("*")]:
            flush(written)
    except Exception:
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
    """``path``, or what `whole_folder` was about to replace where a process was killed in between."""
    return _replaced(path) if not path.exists() and _replaced(path).exists() else path


def _replaced(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")
