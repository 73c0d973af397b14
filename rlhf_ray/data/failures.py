"""Failure messages: one line that a user can act on, or the full traceback in debug mode."""

import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlhf_ray.data.errors import CallbackError, Fault, PartError, SettingError

DEBUG = "RLHF_RAY_DEBUG"
"""Environment variable that enables tracebacks unless empty or 0; `--debug` sets it to 1."""

_FULL = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the file size limit",
}
_SAYS_IT = SettingError | Fault | CallbackError
"""Errors whose message needs no addition."""


def debugging() -> bool:
    """Return whether debug mode is on."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def cause(error: BaseException) -> BaseException:
    """Return the root cause: unwraps what Ray and RLlib add to errors from actors and environments."""
    queue, seen = [error], set[int]()
    while queue:
        one = queue.pop(0)
        wrapped = _wrapped(one)
        if wrapped is None and isinstance(one, _SAYS_IT):
            return one
        seen.add(id(one))
        queue += [each for each in (wrapped, one.__cause__) if each is not None and id(each) not in seen]
    while (inner := _wrapped(error)) is not None:
        error = inner
    return error


def _wrapped(error: BaseException) -> BaseException | None:
    """The error of another process, which Ray wraps."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else None


_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (\S+)', re.MULTILINE)
_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = (sys.prefix + os.sep, sys.base_prefix + os.sep, sysconfig.get_path("stdlib") + os.sep, "<")


def in_code_of_a_user(error: BaseException) -> str:
    """Return where a user's own code (a teacher, a network, …) raised, or called code that raised; empty if none did.

    The program that starts a training calls everything and doesn't count.
    """
    text = ""
    one: BaseException | None = error
    while one is not None:  # inwards: the text of Ray's wrapper is the traceback of the other process
        wrapped = _wrapped(one)
        trace = str(one) if wrapped is not None else "".join(traceback.format_tb(one.__traceback__))
        text = trace if _FRAME.search(trace) else text
        one = wrapped or one.__cause__
    frames = [frame for frame in _FRAME.findall(text) if not frame[0].startswith(_LIBRARIES)]
    ours = [frame[0].startswith(_OURS) for frame in frames]
    if all(ours):
        return ""
    last = len(ours) - 1 - ours[::-1].index(False)
    file, line, function = frames[last]
    return f"{file}, line {line}, in {function}" if last == len(ours) - 1 or any(ours[:last]) else ""


def explain(error: BaseException) -> str:
    """Describe in one line what went wrong, where, and the remedy."""
    where_raised = in_code_of_a_user(error)
    error = cause(error)
    if isinstance(error, PartError):
        return f"{error} --debug shows the full traceback."
    if isinstance(error, _SAYS_IT):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        known = os.strerror(error.errno)
        if not error.filename and error.strerror and error.strerror != known:  # from the store, with a remedy
            resume = " A training run continues with `rlhf-ray train --resume RUN`." if error.errno in _FULL else ""
            return f"{error.strerror}.{resume}"
        what = f"{error.filename}: {known}." if error.filename else f"{known}."
        if error.errno in _FULL:
            remedy = f"Please {_FULL[error.errno]} there and repeat the command"
            return f"{what} {remedy}; a training run continues with `rlhf-ray train --resume RUN`."
        forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        return (
            f"{what} Make it writable, or choose another location (for example with --run-dir)." if forbidden else what
        )
    message = _said(error)
    if where_raised:
        return f"{where_raised}, raised {message}. --debug shows the full traceback."
    return f"unexpected {message}. --debug shows the traceback; include it in a bug report."


def _said(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}{': ' if first else ''}{first.rstrip('.')}"


@contextmanager
def blaming(parts: Mapping[str, str]) -> Iterator[None]:
    """Name the user's own part that raised inside, in an error that passes between processes. Other errors pass unchanged.

    Args:
        parts: names by setting of the parts at work inside. Those of built-in parts are ignored.

    Raises:
        PartError: code of the user raised, or called code that raised.
    """
    try:
        yield
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        own = {name: setting for setting, name in parts.items() if ":" in name}
        where = "" if isinstance(error, _SAYS_IT) or not own else in_code_of_a_user(error)
        if not where:
            raise
        through = set()  # the functions, and the classes of the objects, whose code the error went through
        for frame, _ in traceback.walk_tb(error.__traceback__):
            kinds = type(frame.f_locals["self"]).__mro__ if "self" in frame.f_locals else ()
            through |= {f"{kind.__module__}:{kind.__qualname__}" for kind in kinds}
            through.add(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")
        names = [name for name in own if name.partition("(")[0] in through] or list(own)
        blamed = " or ".join(f"{own[name]} is {str(name)!r}" for name in names)
        raise PartError(f"{blamed}, and it raised {_said(error)} ({where}).") from error


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Add ``path`` to an OSError raised inside that names no file: errors of a full disk don't."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
