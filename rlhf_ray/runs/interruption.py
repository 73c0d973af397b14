"""Interruption: what Ctrl-C and SIGTERM do to a command that has something to save first."""

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
"""Seconds in which signals count as one: `timeout` signals its child and then the child's whole group, so that it comes twice."""


class Interrupted(KeyboardInterrupt):
    """Somebody asked to stop while nothing was under way that has to be completed first."""


class Interruption:
    """Whether somebody asked to stop: call it."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._at_once = self._twice = False

    def __call__(self) -> bool:
        """Whether somebody asked to stop."""
        return self._asked_at is not None

    @contextlib.contextmanager
    def at_once(self, within: float = 0.0) -> Iterator[None]:
        """Within it, the first signal raises `Interrupted` wherever the main thread is, instead of being asked for.

        Args:
            within: seconds it may still take where somebody has asked already. It is left after them in the same way.
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
            raise Interrupted from error  # ray.get makes a plain KeyboardInterrupt of it
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
    """Within it, the first Ctrl-C or SIGTERM asks to stop; a second one raises KeyboardInterrupt, which stops at once.

    Outside of the main thread, where Python delivers no signals, nobody ever asks.
    """
    interruption = Interruption()
    with _handled_by(interruption._ask):
        yield interruption


@contextlib.contextmanager
def nothing_to_save() -> Iterator[None]:
    """Within it, the first signal ends the process, with a line.

    A KeyboardInterrupt is no way to leave imports by: Python drops it in some places and prints its trace in others.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"rlhf-ray: stopped at once\n")
        os._exit(128 + number)

    with _handled_by(end):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within it, ``handler`` takes Ctrl-C and SIGTERM; outside of the main thread nothing changes."""
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
    """End the process with ``code``, without taking all modules apart, which takes torch's and Ray's a second of a core."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def sigterm_as_ctrl_c() -> None:
    """From now on SIGTERM does what Ctrl-C does, whoever handles that. Call it in the main thread.

    Ray's own handler of SIGTERM ends Ray under a run that still has a checkpoint to write.
    """
    last = -SAME_SIGNAL

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > SAME_SIGNAL:
            last = time.monotonic()
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, pass_on)
