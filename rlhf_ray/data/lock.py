"""One writer per folder: a lock that the kernel releases when its process ends, however it ends.

The lock is an ``flock`` on the folder itself, on which all users agree and which follows a rename; and one on the file
``.NAME.lock`` beside it (inside it, if the folder above can't be written), for what isn't there yet, is a file, or is replaced
meanwhile. The file says in JSON who holds the lock: process, host, command, and since when. Readers take none.

The kernel releases it with its process, also after SIGKILL or a crash: nobody judges whether a process is dead, and a reused
process id deceives nobody. On NFS, Linux passes only the file's on to the server (which frees it once the client's lease has
expired); most cluster file systems take both. Where a file system has no locks, no folder is locked, and a warning says so.
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
import stat
import sys
import time
import weakref
from pathlib import Path
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
        self._path, self._remedy = path, remedy
        self._held: list[int] = []
        self._made = [above for above in target.parents if not above.exists()]
        beside, inside = target.with_name(f".{target.name}.lock"), target / INSIDE
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._file = beside if os.access(target.parent, os.W_OK) or not target.is_dir() else inside
            if target.is_dir():
                with contextlib.suppress(OSError):  # its file system can't lock a folder
                    self._held.append(os.open(target, os.O_RDONLY | os.O_DIRECTORY))
                    self._lock(beside, inside)
            while not self._take_file():
                pass
        except (OSError, SettingError) as error:
            self._close()
            if isinstance(error, OSError):
                raise type(error)(error.errno, error.strerror, str(path)) from error
            raise
        _open.add(self)
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        about["command"] = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        with contextlib.suppress(OSError):  # the file is another user's
            os.truncate(self._held[-1], 0)
            os.pwrite(self._held[-1], f"{json.dumps(about)}\n".encode(), 0)

    def _take_file(self) -> bool:
        """Lock the file; return whether it is still there: its holder may have just released it."""
        try:
            self._held.append(descriptor := _opened(self._file))
            try:
                self._lock(self._file)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                said = "The file system of %s has no locks (%s): let no other process write there."
                logger.warning(said, self._path, error.strerror)
                return True
        except OSError as error:
            if not os.path.lexists(self._file):
                raise
            raise SettingError(
                f"{self._path} can't be locked: {self._file} is no lock file that you may use ({error.strerror}). Remove it if no "
                f"other process writes to {self._path}."
            ) from error
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(self._file)):
                return True
        os.close(self._held.pop())
        return False

    def _lock(self, *files: Path) -> None:
        """Lock the last descriptor.

        Raises:
            LockedError: another process has it; one of ``files`` may say which.
            OSError: its file system has no locks.
        """
        try:
            fcntl.flock(self._held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{self._path} is being written by {_holder(*files)}, {self._remedy}.") from None

    def release(self) -> None:
        """Let others write. Does nothing the second time."""
        if not self._held:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._held[-1]), os.lstat(self._file)):  # or the folder was replaced
                os.unlink(self._file)
            for above in self._made:  # nothing was written
                above.rmdir()
        self._close()

    def _close(self) -> None:
        while self._held:
            with contextlib.suppress(OSError):
                os.close(self._held.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self._close()


_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
"""A link leads to somebody's file, and opening a pipe would wait."""

_BEGIN = b'{"pid": '
"""The first bytes of a lock file that is not empty."""


def _opened(file: Path) -> int:
    """Open a lock file, made if missing. Another user's is opened for reading, which is enough to lock it.

    Raises:
        OSError: it can't be opened, or it is no lock file.
    """
    while True:
        try:
            try:
                descriptor = os.open(file, os.O_RDWR | _FLAGS)
            except PermissionError:
                descriptor = os.open(file, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            # Without O_EXCL, Linux would refuse another user's in /tmp.
            with contextlib.suppress(FileExistsError):
                return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            continue
        about = os.fstat(descriptor)
        alone = stat.S_ISREG(about.st_mode) and about.st_nlink <= 1
        if alone and os.pread(descriptor, len(_BEGIN), 0) in (b"", _BEGIN):
            return descriptor
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, "it is something else", str(file))


def _holder(*files: Path) -> str:
    """Describe who holds the lock, and how to end it, from the first of ``files`` that names a living process."""
    for file in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            with os.fdopen(os.open(file, os.O_RDONLY | _FLAGS), "rb") as content:
                about = json.loads(content.read(2**22))
            pid, host, since, command = int(about["pid"]), about["host"], float(about["since"]), about["command"]
            if here := host == socket.gethostname():
                with contextlib.suppress(PermissionError):  # another user's
                    os.kill(pid, 0)
            seconds = max(0.0, time.time() - since)
            size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 5400 else (3600, "h")
            stop = f"`kill {pid}`" if here else f"`kill {pid}` on {host}"
            who = f"process {pid} on {host}, for {seconds / size:.0f} {unit} (`{command}`)"
            return f"{who}: wait until it ends, stop it with {stop}"
    return "another process: wait until it ends"  # which has just taken it, can't write who it is, or is of a renamed folder


def _forked() -> None:
    """In a child made by fork: close the copies of the locks, or they would stay locked for as long as the child lives."""
    for lock in list(_open):
        lock._close()


os.register_at_fork(after_in_child=_forked)
