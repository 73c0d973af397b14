"""What a process may start without: standard streams, and an encoding of file names in UTF-8."""

from __future__ import annotations

import os
import sys


def open_streams() -> None:
    """Open the standard streams that are closed (``>&- 2>&-``) on /dev/null.

    Otherwise files and sockets get their numbers, and whatever is printed goes into them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # it gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - as long as the process


def run_in_utf8() -> None:
    """Run this program in Python's UTF-8 mode if the locale has another encoding, as with ``LC_ALL=C`` and ``PYTHONUTF8=0``.

    File names with other characters would be surrogates there, which no UTF-8 file takes. The terminal's encoding stays.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    os.environ["PYTHONUTF8"] = "1"
    if sys.stdout is not None:
        os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:{sys.stdout.errors}")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
