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
from ray._private import node, services, utils, worker
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


HELPERS = ("start_api_server", "start_monitor", "start_log_monitor")
"""What `Node` starts the processes by that make a dashboard, order machines and read workers' logs: nobody asks for any of that."""

PRESTARTED = "--num_prestart_python_workers="
"""Option of Ray's raylet: how many workers it starts ahead."""


class RayStart:
    """A start of Ray on this machine.

    Args:
        workers: to start ahead. Ray itself starts one for each core.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.processes: list[Any] = []
        """Those that were started, each in a process group of its own, in which what it starts is too."""

    def end(self) -> None:
        """End what `ray.shutdown` does not, of a start that failed."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def started_for_a_run(workers: int) -> Iterator[RayStart]:
    """Within it, Ray starts with few processes, and such that what ends a run does not end Ray under it.

    Terminals, `timeout` and job runners signal the whole process group, so Ray's processes get their own: the run needs them to
    save itself (they still die with this one). Ray's own handler of SIGTERM, which ends them, is not set.

    Args:
        workers: to start ahead.
    """
    start = RayStart(workers)
    before = signal.getsignal(signal.SIGTERM)

    def keep(handler: object = None) -> None:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # again, since Ray's C++ has set one of its own

    def begin(command: list[str], *arguments: Any, **keywords: Any) -> Any:
        fewer = [f"{PRESTARTED}{workers}" if word.startswith(PRESTARTED) else word for word in command]
        process = popen(fewer, *arguments, process_group=0, **keywords)
        start.processes.append(process)
        return process

    popen, set_handler = services.ConsolePopen, utils.set_sigterm_handler
    helpers = {name: getattr(node.Node, name) for name in HELPERS}
    services.ConsolePopen, utils.set_sigterm_handler = begin, keep
    for name in HELPERS:
        setattr(node.Node, name, lambda self, **keywords: None)
    try:
        yield start
    finally:
        for name, method in helpers.items():
            setattr(node.Node, name, method)
        services.ConsolePopen, utils.set_sigterm_handler = popen, set_handler
        keep()


def hush_ray() -> None:
    """From now on Ray prints nothing here: of calls that are under way when their actors are ended it says that they failed."""
    driver = worker.global_worker
    if driver.connected and hasattr(driver, "gcs_error_subscriber"):
        driver.threads_stopped.set()
        driver.gcs_error_subscriber.close()
