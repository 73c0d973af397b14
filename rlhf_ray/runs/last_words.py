"""Last words: a line for a process that ends without a chance to print one, because of a crash, ``os._exit`` or SIGKILL."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
from typing import IO

CRASHED = "rlhf-ray: the process ended suddenly: an environment or a library crashed or called os._exit, or the process was killed"
"""What is known of a sudden end."""

_SCRIPT = (
    "trap '' INT TERM HUP; while read -r line; do last=$line; done; [ \"$last\" = . ] || printf '%s\\n' \"$last\" >&2"
)
"""Prints the last line of its input, unless that is a dot. It sees the end of the input when the process has ended."""

_input: IO[bytes] | None = None


def begin() -> None:
    """Print the line of the last `on_sudden_end` if this process ends suddenly: a shell waits for that."""
    global _input
    if _input is not None or os.name != "posix":
        return
    with contextlib.suppress(OSError):
        shell = subprocess.Popen(["sh", "-c", _SCRIPT], stdin=subprocess.PIPE, start_new_session=True)
        _input = shell.stdin
        on_sudden_end(f"{CRASHED}.")
        atexit.register(forget)


def on_sudden_end(line: str) -> None:
    """Set the line. Does nothing without `begin`."""
    if _input is not None:
        with contextlib.suppress(OSError):
            _input.write(f"{' '.join(line.split())}\n".encode())
            _input.flush()


def forget() -> None:
    """Print nothing: the process ends and says so itself."""
    on_sudden_end(".")
