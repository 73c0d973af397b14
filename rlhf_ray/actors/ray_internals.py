"""All uses of Ray's core beyond its public interface. tests/actors/test_ray_internals.py starts Ray with them.

Those of RLlib are in `rlhf_ray.rllib.rllib_internals`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray._private import node, ray_constants, services, utils, worker
from ray._private.runtime_env import packaging
from ray._raylet import GcsClient  # type: ignore[attr-defined]

LOGGER = "ray._private.worker"
"""Logger of Ray's messages in the driver."""


def call_head(address: str, timeout: float) -> None:
    """Make one call to the head at ``address``. Takes milliseconds, while Ray's `init` takes half a minute to fail.

    Raises:
        ray.exceptions.AuthenticationError: the head rejects this process's token.
        Exception: nothing answers, or the server is not a head.
    """
    with _silenced():
        GcsClient(address=address).internal_kv_get(b"", None, timeout=timeout)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Suppress what Ray's C++ code prints to stderr; the exception says it better."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


HELPERS = ("start_api_server", "start_monitor", "start_log_monitor")
"""Methods of `Node` that start processes a run doesn't need: the dashboard, the autoscaler's monitor and the log monitor."""

PRESTARTED = "--num_prestart_python_workers="
"""Option of Ray's raylet: number of prestarted workers."""


class RayStart:
    """A start of Ray on this machine.

    Args:
        workers: number of workers to prestart. Ray's default is one per core.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.processes: list[Any] = []
        """The started processes, each in its own process group with its children."""

    def end(self) -> None:
        """Kill the processes of a failed start, which `ray.shutdown` leaves behind."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def started_for_a_run(workers: int) -> Iterator[RayStart]:
    """Context manager: start Ray with few processes that survive signals to the run's process group.

    Terminals, `timeout` and job runners signal the whole process group. Ray's processes get their own groups, because the run
    needs them to save its state (they still die with this process). Ray's own SIGTERM handler, which ends them, is not installed.
    """
    start = RayStart(workers)
    before = signal.getsignal(signal.SIGTERM)

    def keep(handler: object = None) -> None:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # restore it: Ray's C++ code sets its own

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
    """Silence Ray from now on: it would report pending calls of actors that are being stopped as failed."""
    driver = worker.global_worker
    if driver.connected and hasattr(driver, "gcs_error_subscriber"):
        driver.threads_stopped.set()
        driver.gcs_error_subscriber.close()


UPLOAD_LIMIT = min(ray_constants.DASHBOARD_CLIENT_MAX_SIZE, packaging.GCS_STORAGE_MAX_SIZE)
"""Bytes that the dashboard takes as a job's working directory."""


def uploaded(folder: Path) -> list[Path]:
    """Return what Ray uploads of ``folder``: all but what .gitignore, .rayignore and Ray's own list exclude."""
    packages: list[Path] = []
    with_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    excluded = packaging._get_excludes(folder, ray_constants.get_runtime_env_default_excludes())
    packaging._dir_travel(folder, [excluded], packages.append, include_gitignore=with_gitignore)
    return packages
