"""Starts Ray or connects to a cluster for a run, and shuts Ray down after the last run that needed it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import ray

from rlhf_ray.actors import access
from rlhf_ray.actors.ray_internals import call_head, hush_ray, started_for_a_run
from rlhf_ray.data import modules
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import JOB
from rlhf_ray.data.system import CORES, TORCH_THREADS

logger = logging.getLogger(__name__)

ANSWER_WITHIN = 30.0
"""Seconds that a head may take to answer."""

FOR_ACTORS = {
    # With Ray's default niceness of 15, the ring's actors starve on a busy machine while the run waits for them.
    "RAY_worker_niceness": "0",
    # By default, glibc keeps up to eight malloc arenas per core; each grows and returns no memory.
    "MALLOC_ARENA_MAX": "2",
}
"""Environment variables for Ray's processes on this machine."""

SOCKET_PATH = 104 if sys.platform == "darwin" else 108
"""Bytes of a socket's path in the kernel, with the zero at the end."""

_LONGEST_SOCKET = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1"
"""Ray's longest socket below its temporary folder."""

_held = 0
_ours = False


def job_metadata() -> dict[str, str]:
    """Return the metadata of the job that this process runs, including ``job_submission_id``; empty outside of jobs."""
    metadata: dict[str, str] = json.loads(os.environ.get(JOB, "{}")).get("metadata", {})
    return metadata


def start_ray(cpus: int) -> None:
    """Connect to the cluster at ``RAY_ADDRESS``, or start Ray on this machine. Does nothing if Ray is running.

    Ray listens on all interfaces. It requires a token, which it makes in ``~/.ray``, unless ``RAY_AUTH_MODE`` says otherwise.

    Args:
        cpus: CPUs that the run claims. On a machine with fewer, Ray is started with this number; processes then share CPUs.

    Raises:
        NoAccessError: nothing answers at ``RAY_ADDRESS``, or the cluster rejects this machine's token.
    """
    if ray.is_initialized():
        return
    if address := os.environ.get("RAY_ADDRESS"):
        told = {name: os.environ[name] for name in (TORCH_THREADS, CORES, modules.FOLDERS) if name in os.environ}
        runtime_env: dict[str, Any] = {"env_vars": told}
        look(address)
        # Ray refuses variables that the job was already submitted with, even with equal values.
        for name in json.loads(os.environ.get(JOB, "{}")).get("runtime_env", {}).get("env_vars") or {}:
            told.pop(name, None)
        ray.init(runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR")
        return
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")).lower() != "token":
        logger.warning(
            "RAY_AUTH_MODE is %r: this run's Ray listens on all interfaces and runs code for everyone who reaches this machine. "
            "Unset it, and Ray requires a token.",
            mode,
        )
    else:
        access.make_token()
    # Set them in the environment, which Ray's processes inherit: a runtime_env would need new workers instead of prestarted ones.
    with _environment():
        for attempts_left in (2, 1, 0):
            if _start_here(cpus, attempts_left):
                return


def join_cluster() -> None:
    """Connect to the cluster at ``RAY_ADDRESS``, if that is set (`start_ray`)."""
    if os.environ.get("RAY_ADDRESS"):
        start_ray(cpus=0)


def _start_here(cpus: int, attempts_left: int) -> bool:
    """Start Ray on this machine. Return False, after cleaning up, if it takes longer than Ray allows (on a busy machine)."""
    with started_for_a_run(workers=1) as start:  # one for the ring's shared process; others start on demand
        try:
            ray.init(
                address="local",
                num_cpus=max(cpus, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=_sockets(),
            )
        except BaseException as error:
            hush_ray()
            ray.shutdown()
            start.end()
            # Ray gives its own processes a fixed 30 s to start up.
            if "timed out during startup" not in str(error):
                raise
            if not attempts_left:
                seen = (
                    f"Ray didn't start on this machine within 30 s, in three attempts (load {os.getloadavg()[0]:.0f})"
                )
                raise access.NoAccessError(seen, "Try again when the machine is less busy.") from error
            return False
    return True


def _sockets() -> str | None:
    """Return where Ray keeps its sockets: in its usual place (None) unless the path is too long for sockets, else in /tmp.

    Raises:
        SettingError: that can't be written.
    """
    usual = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(os.fsencode(os.path.join(usual, _LONGEST_SOCKET))) < SOCKET_PATH:
        return None
    if not os.access("/tmp", os.W_OK | os.X_OK):
        raise SettingError(
            f"TMPDIR is {usual}, and paths of Ray's sockets may have {SOCKET_PATH - 1} bytes: set RAY_TMPDIR to a folder with a "
            f"path of at most {SOCKET_PATH - 2 - len(_LONGEST_SOCKET)} bytes."
        )
    return "/tmp/ray"


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Context manager: set the variables for Ray's processes, unless already set."""
    missing = {name: value for name, value in FOR_ACTORS.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def look(address: str) -> None:
    """Check access to a cluster at once; Ray takes half a minute to report that it has none.

    Args:
        address: Ray's own address. Other forms than ``HOST:PORT`` are not checked.

    Raises:
        NoAccessError: nothing answers there, or the cluster rejects this machine's token.
    """
    access.reach(address)
    if "://" in address or ":" not in address:
        return
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and access.token_source() is None:
        raise access.refused(address)  # Ray would exit the process
    try:
        call_head(address, ANSWER_WITHIN)
    except ray.exceptions.AuthenticationError as error:
        raise access.refused(address) from error
    except Exception as error:
        remedy = "Name the head's own address, HOST:6379; a dashboard's address begins with http://."
        raise access.NoAccessError(f"The server at {address} is not a Ray head ({error})", remedy) from error


def hold_ray(cpus: int) -> None:
    """Call `start_ray`. Must be followed by one `release_ray`."""
    global _held, _ours
    if not ray.is_initialized():
        start_ray(cpus)
        _ours = True
    _held += 1


def release_ray() -> None:
    """Shut Ray down if `hold_ray` started it and no holder remains."""
    global _held, _ours
    _held -= 1
    if _held == 0 and _ours:
        ray.shutdown()
        _ours = False


def was_restarted() -> bool:
    """Return whether this process is an actor that Ray has started again."""
    context: Any = ray.get_runtime_context() if ray.is_initialized() else None
    if context is None or context.get_actor_id() is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses another, deprecated property itself
        return bool(context.was_current_actor_reconstructed)
