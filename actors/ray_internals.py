"""All that is used of Ray's core beyond its interface. tests/actors/test_ray_internals.py holds it to the installed Ray.

What is used of RLlib's is in `rlhf_ray.rllib.rllib_internals`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import services, utils, worker
from ray._raylet import GcsClient  # type: ignore[attr-defined]

LOGGER = "ray._private.worker"
"""Logger of what Ray says in the driver."""


def free_resources() -> list[dict[str, float]]:
    """What nothing claims, of each node: Ray's own `available_resources` gives one sum."""
    return list(ray._private.state.available_resources_per_node().values())


def call_head(address: str, timeout: float) -> None:
    """Make one call to the head at ``address``, which takes milliseconds where Ray's `init` takes half a minute to fail.

    Raises:
        ray.exceptions.AuthenticationError: it does not take this process's token.
        Exception: what answers is no head, or nothing does.
    """
    with _silenced():
        GcsClient(address=address).internal_kv_get(b"", None, timeout=timeout)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Keep to itself what Ray's C++ prints of what the exception says better."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


class _OfOwnGroup(services.ConsolePopen):  # type: ignore[misc]
    """A process of Ray's, in a process group of its own."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, process_group=0, **keywords)


@contextlib.contextmanager
def out_of_signals_way() -> Iterator[None]:
    """Within it, Ray starts such that what ends a run does not end Ray under it, which the run needs to save itself.

    Terminals, `timeout` and job runners signal the whole process group, so Ray's processes get their own (they still die with this
    one). Ray's own handler of SIGTERM, which ends them, is not set.
    """
    before = signal.getsignal(signal.SIGTERM)

    def keep(handler: object = None) -> None:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # again, since Ray's C++ has set one of its own

    set_handler, utils.set_sigterm_handler = utils.set_sigterm_handler, keep
    services.ConsolePopen = _OfOwnGroup
    try:
        yield
    finally:
        services.ConsolePopen = _OfOwnGroup.__base__
        utils.set_sigterm_handler = set_handler
        keep()


def hush_ray() -> None:
    """From now on Ray prints nothing here: of calls that are under way when their actors are ended it says that they failed."""
    driver = worker.global_worker
    if driver.connected and hasattr(driver, "gcs_error_subscriber"):
        driver.threads_stopped.set()
        driver.gcs_error_subscriber.close()
