"""One writer per folder: a lock that the kernel releases when its process ends, however it ends.

The lock is an ``flock`` on the file ``.NAME.lock`` beside the folder (inside it, if the folder above can't be written), which says
in JSON who holds it: process, host, command, and since when. Readers take none. The kernel releases it with its process, also
after SIGKILL or a crash, so that nobody judges whether a process is dead, and a reused process id deceives nobody. Linux passes
``flock`` on to the server on NFS (which frees it once the client's lease has expired) and on most cluster file systems. Where a
file system has no locks, no folder is locked, and a warning says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shlex
import socket
import sys
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from rlhf_ray.data.errors import SettingError

INSIDE = ".lock"
"""Name of the lock file of a folder inside one that can't be written."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_open: weakref.WeakSet[Lock] = weakref.WeakSet()
"""The locks that this process holds."""

logger = logging.getLogger(__name__)


class LockedError(SettingError):
    """Another process writes to the folder. The message names the process, its host, how long it has been there, and the remedy."""


class Lock:
    """The right to write to a folder or file. Taken when made, and held until `release`, the end of a ``with`` or of the process.

    Args:
        path: the folder or file. It need not exist, but the folder above it must, or can be made.
        remedy: what to do instead if another process writes there: the end of a sentence.

    Raises:
        LockedError: another process, or another part of this one, writes there.
        OSError: the lock file can't be written.
    """

    def __init__(self, path: Path | str, remedy: str = "or give another folder"):
        target = Path(os.path.realpath(path))
        self._descriptor: int | None = None
        self._made = [above for above in target.parents if not above.exists()]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            inside = not os.access(target.parent, os.W_OK) and target.is_dir()
            self._file = target / INSIDE if inside else target.with_name(f".{target.name}.lock")
            while self._descriptor is None:
                self._descriptor = self._take(path, remedy)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from error
        _open.add(self)
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.time(),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        }
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{json.dumps(about)}\n".encode(), 0)

    def _take(self, path: Path | str, remedy: str) -> int | None:
        """Return the locked file; None if its holder has just released it."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._file)
            if error.errno in _NO_LOCKS:
                logger.warning(
                    "The file system of %s has no locks (%s): let no other process write there.", path, error.strerror
                )
                return descriptor
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise LockedError(f"{path} is being written by {holder}, {remedy}.") from None
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(self._file)):
                return descriptor
        os.close(descriptor)  # its holder has deleted it since we opened it
        return None

    def release(self) -> None:
        """Let others write. Does nothing the second time."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._file)):  # or the folder was replaced
                os.unlink(self._file)
            for above in self._made:  # nothing was written
                above.rmdir()
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self._close()


def _holder(file: Path) -> str:
    """Describe who holds the lock, and how to end it."""
    try:
        about = json.loads(file.read_text())
        pid, host, since, command = (about[name] for name in ("pid", "host", "since", "command"))
        minutes = max(0.0, time.time() - float(since)) / 60
    except (OSError, ValueError, KeyError, TypeError):  # it has just been taken, and doesn't say yet
        return "another process: wait until it ends"
    age = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.0f} h"
    age = f"{60 * minutes:.0f} s" if minutes < 2 else age
    stop = f"`kill {pid}`" if host == socket.gethostname() else f"`kill {pid}` on {host}"
    return f"process {pid} on {host}, for {age} (`{command}`): wait until it ends, stop it with {stop}"


def _forked() -> None:
    """In a child made by fork: close the copies of the locks, or they would stay locked for as long as the child lives."""
    for lock in list(_open):
        lock._close()


os.register_at_fork(after_in_child=_forked)
