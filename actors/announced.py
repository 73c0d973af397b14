"""AnnouncedRun: stands for a run in a cluster that several share, so that runs can be listed and stopped from anywhere in it."""

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
"""Ray namespace of all announced runs: the one place where runs see each other."""

TELL_EVERY = 2.0
"""Seconds between two calls that say how far a run is, at least; a new state is told at once."""

VANISH_WITHIN = 15.0
"""Seconds that a run which has just ended may take to vanish, before another one of its folder is refused."""

ANSWER_WITHIN = 20.0
"""Seconds that a run may take to say how it is. One that is busy dying does not answer."""


class AnnouncedRun:
    """Says how a run is, and stops it. It sits on the node of the run's own process and dies with it.

    Args:
        about: what does not change: ``folder``, ``pid`` of the run's process, and whatever else there is to say.
    """

    def __init__(self, about: dict[str, Any]):
        self._about = about
        self._now: dict[str, Any] = {"state": "starting", "since": time.time()}

    def tell(self, values: dict[str, Any]) -> None:
        """The run says how it is."""
        if values.get("state", self._now["state"]) != self._now["state"]:
            self._now["since"] = time.time()
        if self._now["state"] == "stopping":  # until it is over, whatever it does on the way there
            values = values | {"state": "stopping"}
        self._now |= values

    def status(self) -> dict[str, Any]:
        """What is known of the run. ``since`` is when its state began, in seconds since 1970."""
        return self._about | self._now

    def stop(self) -> None:
        """Ask the run to stop as Ctrl-C does, once: a second Ctrl-C would end it without a checkpoint."""
        if self._now["state"] != "stopping":
            os.kill(self._about["pid"], signal.SIGINT)
            self._now = self._now | {"state": "stopping", "since": time.time()}


class Announcement:
    """A run's own hold of its `AnnouncedRun`; one that announces nothing where ``actor`` is None."""

    def __init__(self, actor: ActorHandle[Any] | None):
        self._actor = actor
        self._told = -TELL_EVERY

    def tell(self, state: str | None = None, **values: Any) -> None:
        """Say how the run is; does not wait until that has arrived."""
        if self._actor is None or (state is None and time.monotonic() < self._told + TELL_EVERY):
            return
        self._told = time.monotonic()
        self._actor.tell.remote(values if state is None else values | {"state": state})


@contextlib.contextmanager
def announced(folder: Path, **about: Any) -> Iterator[Announcement]:
    """Within it, the run in ``folder`` is listed by `runs` and can be stopped through Ray, which must be running.

    On a Ray that a run has started for itself alone nothing is announced: there is nobody to find it.

    Args:
        folder: of the run.
        about: what else to say of it.

    Raises:
        SettingError: the run in this folder is going on already.
    """
    if private_ray():
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
    # Ray blocks it in its own processes, of which a job's is a child.
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
                    f"run_dir is {name}, and the run in that folder is going on in this cluster: stop it first "
                    f"(rlhf-ray stop {name}), or name another folder."
                ) from error
            time.sleep(0.5)


def runs() -> list[dict[str, Any]]:
    """What all runs of the cluster that Ray is connected to say of themselves, the oldest first."""
    asked = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            with contextlib.suppress(ValueError):  # it has ended since
                asked.append(ray.get_actor(actor["name"], NAMESPACE).status.remote())
    found = []
    deadline = time.monotonic() + ANSWER_WITHIN
    for answer in asked:
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            found.append(ray.get(answer, timeout=max(0.0, deadline - time.monotonic())))
    return sorted(found, key=lambda run: run["started"])


def stop(folder: str, within: float | None = None) -> bool:
    """Stop the announced run in ``folder`` as Ctrl-C does, and wait until it is over.

    Args:
        folder: of the run, as `runs` gives it.
        within: seconds to wait at most; for ever unless given.

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
