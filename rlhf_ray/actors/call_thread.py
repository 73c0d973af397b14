"""CallThread: a thread that works through calls, one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class CallThread:
    """A daemon thread, started with its first call. Unlike one of Python's executors, it doesn't keep the interpreter alive.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str):
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue ``call``; return the future of its result.

        Raises:
            RuntimeError: `end` was called.
        """
        if self._ended:
            raise RuntimeError(f"{self._name} has ended.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def end(self) -> None:
        """Take no more calls, and none of those queued. The current one finishes."""
        self._ended = True
        self._calls.put(None)

    def _run(self) -> None:
        while (queued := self._calls.get()) is not None:
            call, future = queued
            if self._ended or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del call, future, queued
