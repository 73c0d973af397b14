"""AnnouncedRun: represents a run in a shared cluster, so that it can be listed and stopped from any node."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_ray.actors.cluster import job_metadata, private_ray
from rlhf_ray.data.errors import SettingError

NAMESPACE = "rlhf_ray"
"""Ray namespace of all announced runs, shared by their owners."""

TELL_EVERY = 2.0
"""Minimum seconds between status reports of a run; a new state is reported at once."""

VANISH_WITHIN = 15.0
"""Seconds to wait for a run that has just ended to disappear, before refusing a new one in its folder."""

ANSWER_WITHIN = 20.0
"""Seconds that a run may take to report its status. A dying one doesn't answer."""


class AnnouncedRun:
    """Reports a run's status, and stops it. Runs on the node of the run's own process and dies with it.

    Args:
        about: constant facts: ``folder``, ``pid`` of the run's process, and others to report.
    """

    def __init__(self, about: dict[str, Any]):
        self._about = about
        self._now: dict[str, Any] = {"state": "starting", "since": time.time()}

    def tell(self, values: dict[str, Any]) -> None:
        """Update the status (called by the run)."""
        if values.get("state", self._now["state"]) != self._now["state"]:
            self._now["since"] = time.time()
        if self._now["state"] == "stopping":  # stays until the run is over
            values = values | {"state": "stopping"}
        self._now |= values

    def status(self) -> dict[str, Any]:
        """Return all facts about the run. ``since`` is the start of its state, in seconds since 1970."""
        return self._about | self._now

    def stop(self) -> None:
        """Ask the run to stop like Ctrl-C does, only once: a second Ctrl-C would end it without a checkpoint."""
        if self._now["state"] != "stopping":
            os.kill(self._about["pid"], signal.SIGINT)
            self._now = self._now | {"state": "stopping", "since": time.time()}


class Announcement:
    """A run's access to its `AnnouncedRun`. Without ``actor``, it does nothing."""

    def __init__(self, actor: ActorHandle[Any] | None):
        self._actor = actor
        self._told = -TELL_EVERY

    def tell(self, state: str | None = None, **values: Any) -> None:
        """Report the run's status. Doesn't wait for delivery."""
        if self._actor is None or (state is None and time.monotonic() < self._told + TELL_EVERY):
            return
        self._told = time.monotonic()
        self._actor.tell.remote(values if state is None else values | {"state": state})


@contextlib.contextmanager
def announced(folder: Path, **about: Any) -> Iterator[Announcement]:
    """Context manager: `runs` lists the run in ``folder``, and `stop` can stop it.

    Does nothing without Ray, or on a private one that the run started for itself.

    Args:
        folder: the run's folder.
        about: further facts to report.

    Raises:
        SettingError: a run in this folder is already running in the cluster.
    """
    if private_ray() or not ray.is_initialized():
        yield Announcement(None)
        return
    metadata = job_metadata()
    about |= {
        "name": folder.name,
        "folder": str(folder),
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),
        "started": time.time(),
        "user": metadata.get("user") or getpass.getuser(),
        "job": metadata.get("job_submission_id"),
    }
    # Ray blocks SIGINT in its own processes, and a job's process inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    actor = _place(str(folder), about)
    try:
        yield Announcement(actor)
    finally:
        ray.kill(actor)


def _place(name: str, about: dict[str, Any]) -> ActorHandle[Any]:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    deadline = time.monotonic() + VANISH_WITHIN
    while True:
        try:
            return (
                ray.remote(AnnouncedRun)
                .options(
                    name=name,
                    namespace=NAMESPACE,
                    num_cpus=0,
                    max_restarts=-1,
                    max_task_retries=-1,
                    scheduling_strategy=here,
                )
                .remote(about)
            )
        except ValueError as error:  # the name is taken
            if time.monotonic() > deadline:
                raise SettingError(
                    f"run_dir is {name}, but a run in that folder is still running in this cluster: stop it first "
                    f"(rlhf-ray stop {name}), or name another folder."
                ) from error
            time.sleep(0.5)


def runs() -> list[dict[str, Any]]:
    """Return the status of all runs in the connected cluster, oldest first."""
    asked = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            with contextlib.suppress(ValueError):  # it has ended in the meantime
                asked.append(ray.get_actor(actor["name"], NAMESPACE).status.remote())
    announced = []
    deadline = time.monotonic() + ANSWER_WITHIN
    for answer in asked:
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            announced.append(ray.get(answer, timeout=max(0.0, deadline - time.monotonic())))
    return sorted(announced, key=lambda run: run["started"])


def stop(folder: str, within: float | None = None) -> bool:
    """Stop the announced run in ``folder`` like Ctrl-C does, and wait until it is over.

    Args:
        folder: the run's folder, as `runs` reports it.
        within: maximum seconds to wait; None waits forever.

    Returns:
        Whether it is over.
    """
    deadline = None if within is None else time.monotonic() + within
    with contextlib.suppress(ValueError, ray.exceptions.RayActorError):
        ray.get(ray.get_actor(folder, NAMESPACE).stop.remote())
    while {"name": folder, "namespace": NAMESPACE} in ray.util.list_named_actors(all_namespaces=True):
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
