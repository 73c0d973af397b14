"""Ray: to be there for a run, and gone again when the last one that needed it is over."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import ray

from rlhf_ray.actors import access
from rlhf_ray.actors.ray_internals import call_head, hush_ray, started_for_a_run
from rlhf_ray.data import modules
from rlhf_ray.data.places import JOB

ANSWER_WITHIN = 30.0
"""Seconds that a head may take to answer."""

FOR_ACTORS = {
    # At Ray's own niceness of 15 the ring's actors, which the run waits for, get next to nothing on a busy machine.
    "RAY_worker_niceness": "0",
    # By itself glibc keeps an arena for each of up to eight threads per core, of which each grows and none gives back.
    "MALLOC_ARENA_MAX": "2",
}
"""What Ray's processes on this machine are started with."""

_held = 0
_ours = False
_private = False


def job_metadata() -> dict[str, str]:
    """What was said of the job that this process runs, its ``job_submission_id`` among it; nothing outside of jobs."""
    metadata: dict[str, str] = json.loads(os.environ.get(JOB, "{}")).get("metadata", {})
    return metadata


def private_ray() -> bool:
    """Whether this process started Ray for itself alone."""
    return _private


def start_ray(cpus: int) -> None:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or start Ray on this machine; nothing where Ray runs already.

    Args:
        cpus: CPUs that the run claims. A machine with fewer is told it has as many: its processes then share them.

    Raises:
        NoAccessError: nothing answers at ``RAY_ADDRESS``, or it does not take this machine's token.
    """
    if ray.is_initialized():
        return
    global _private
    if address := os.environ.get("RAY_ADDRESS"):
        told = {name: os.environ[name] for name in ("OMP_NUM_THREADS", modules.FOLDERS) if name in os.environ}
        runtime_env: dict[str, Any] = {"env_vars": told}
        look(address)
        # Ray refuses what the job was submitted with, even when it is the same.
        for name in json.loads(os.environ.get(JOB, "{}")).get("runtime_env", {}).get("env_vars") or {}:
            told.pop(name, None)
        ray.init(runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR")
        return
    # Ray's processes inherit the environment, so that workers it has started ahead can be used: a runtime_env needs new ones.
    with _environment():
        for attempts_left in (2, 1, 0):
            if _start_here(cpus, attempts_left):
                _private = True
                return


def _start_here(cpus: int, attempts_left: int) -> bool:
    """Start Ray on this machine. False where it took longer than Ray allows, as on a busy machine; nothing is left then."""
    with started_for_a_run(workers=1) as start:  # what the ring shares a process of; others are started when called for
        try:
            ray.init(
                address="local",
                num_cpus=max(cpus, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except BaseException as error:
            hush_ray()
            ray.shutdown()
            start.end()
            # Ray gives its own processes a fixed 30 s to start.
            if "timed out during startup" not in str(error):
                raise
            if not attempts_left:
                seen = f"Ray did not start on this machine within 30 s, three times in a row (load {os.getloadavg()[0]:.0f})"
                raise access.NoAccessError(seen, "Try again when the machine has less to do.") from error
            return False
    return True


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Within it, Ray that is started hands these on to its processes, unless they are set already."""
    missing = {name: value for name, value in FOR_ACTORS.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def look(address: str) -> None:
    """Find out at once what Ray takes half a minute to say of a cluster that lets nobody in.

    Args:
        address: Ray's own. Of one that is no ``HOST:PORT`` nothing is found out.

    Raises:
        NoAccessError: nothing answers there, or it does not take this machine's token.
    """
    access.reach(address)
    if "://" in address or ":" not in address:
        return
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and access.token_source() is None:
        raise access.refused(address)  # Ray would end the process
    try:
        call_head(address, ANSWER_WITHIN)
    except ray.exceptions.AuthenticationError as error:
        raise access.refused(address) from error
    except Exception as error:
        remedy = "Name a Ray head's own address, HOST:6379; that of a dashboard begins with http://."
        raise access.NoAccessError(f"What answers at {address} is no Ray head ({error})", remedy) from error


def hold_ray(cpus: int) -> None:
    """`start_ray`, to be followed by one `release_ray`."""
    global _held, _ours
    if not ray.is_initialized():
        start_ray(cpus)
        _ours = True
    _held += 1


def release_ray() -> None:
    """Shut Ray down if `hold_ray` started it and nobody holds it any more."""
    global _held, _ours, _private
    _held -= 1
    if _held == 0 and _ours:
        ray.shutdown()
        _ours = _private = False
