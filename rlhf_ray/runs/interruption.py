"""Interruption: graceful handling of Ctrl-C and SIGTERM for commands that must save first."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SAME_SIGNAL = 1.0
"""Signals within this many seconds count as one: `timeout` signals its child and then the child's group, so it arrives twice."""


class Interrupted(KeyboardInterrupt):
    """A stop was requested while nothing had to be completed first."""


class Interruption:
    """Callable that returns whether a stop was requested."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._at_once = self._twice = False

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self._asked_at is not None

    @contextlib.contextmanager
    def at_once(self, within: float = 0.0) -> Iterator[None]:
        """Inside this context, the first signal raises `Interrupted` in the main thread at once.

        Args:
            within: if a stop was already requested, the seconds after which `Interrupted` is raised.
        """
        self._at_once = True
        timed = self() and within > 0.0
        before = signal.signal(signal.SIGALRM, self._leave) if timed else None
        try:
            if timed:
                signal.setitimer(signal.ITIMER_REAL, within)
            elif self():
                raise Interrupted
            yield
        except KeyboardInterrupt as error:
            if self._twice:
                raise
            raise Interrupted from error  # ray.get turns it into a plain KeyboardInterrupt
        finally:
            self._at_once = False
            if timed:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, before)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        raise Interrupted

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            if self._at_once:
                raise Interrupted
        elif now - self._asked_at > SAME_SIGNAL:
            self._twice = True
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Inside this context, the first Ctrl-C or SIGTERM requests a stop; a second one raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, a stop is never requested.
    """
    interruption = Interruption()
    with _handled_by(interruption._ask):
        yield interruption


@contextlib.contextmanager
def nothing_to_save() -> Iterator[None]:
    """Inside this context, the first signal prints one line and ends the process.

    A KeyboardInterrupt does not reliably abort imports: Python drops it in some places and prints a traceback in others.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"rlhf-ray: interrupted\n")
        os._exit(128 + number)

    with _handled_by(end):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside this context, ``handler`` handles Ctrl-C and SIGTERM; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def leave(code: int) -> NoReturn:
    """Exit with ``code``, skipping module teardown, which takes a second with torch and Ray."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has closed the pipe
            stream.flush()
    os._exit(code)


def sigterm_as_ctrl_c() -> None:
    """Make SIGTERM act like Ctrl-C. Call it in the main thread.

    Ray's own SIGTERM handler shuts Ray down while the run still has to write a checkpoint.
    """
    last = -SAME_SIGNAL

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > SAME_SIGNAL:
            last = time.monotonic()
            if (
                signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            ):  # as a shell's script starts what runs in its background
                signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)

    # Ray blocks SIGINT in its own processes, and a job's process inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, pass_on)
