"""Ray: to be there for a run, and gone again when the last one that needed it is over."""

from __future__ import annotations

import os

import ray

_held = 0
_ours = False


def start_ray(cpus: int) -> None:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or start Ray on this machine; nothing where Ray runs already.

    Args:
        cpus: CPUs that the run claims. A machine with fewer is told it has as many: its processes then share them.
    """
    if ray.is_initialized():
        return
    runtime_env = {"env_vars": {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR")
        return
    # At Ray's own niceness of 15 the ring's actors, which the run waits for, get next to nothing on a busy machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    for attempts_left in (2, 1, 0):
        try:
            ray.init(
                address="local",
                num_cpus=max(cpus, os.cpu_count() or 1),
                include_dashboard=False,
                runtime_env=runtime_env,
                log_to_driver=False,
                logging_level="ERROR",
            )
            return
        except Exception as error:
            # Ray gives its own processes a fixed 30 s to start, which a busy machine may exceed.
            if not attempts_left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def hold_ray(cpus: int) -> None:
    """`start_ray`, to be followed by one `release_ray`."""
    global _held, _ours
    if not ray.is_initialized():
        start_ray(cpus)
        _ours = True
    _held += 1


def release_ray() -> None:
    """Shut Ray down if `hold_ray` started it and nobody holds it any more."""
    global _held, _ours
    _held -= 1
    if _held == 0 and _ours:
        ray.shutdown()
        _ours = False
