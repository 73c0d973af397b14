"""Kills: a run's Ray actors, by kill -9, at moments drawn from a seed. Not a test itself."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

ROLES = ("EnvRunner", "ActorHost", "FragmentPool", "GathererActor", "PreferenceStore", "RewardTrainerActor")
ROLES += ("RolloutCollector",)
"""What Ray calls their processes."""


@dataclass(frozen=True)
class Kill:
    """One kill: the actor's class, and how far the run was."""

    role: str
    progress: float


class Killer:
    """Kills ``count`` actors among the descendants of process ``pid``, at moments drawn evenly from the whole of its run.

    Args:
        pid: of the run.
        count: kills in all.
        seed: of the moments and of which actors.
        progress: how far the run is, from 0 to 1.
        roles: which actors.
    """

    def __init__(self, pid: int, count: int, seed: int, progress: Callable[[], float], roles: tuple[str, ...] = ROLES):
        self.kills: list[Kill] = []
        draw = random.Random(seed)
        self._planned = sorted((draw.random(), draw.random()) for _ in range(count))
        """Moments, and which of those alive then, by position in the alphabet."""
        self._pid, self._progress, self._roles = pid, progress, roles
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Kill no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while self._planned and not self._stop.wait(0.1):
            moment, which = self._planned[0]
            alive = sorted(self._alive().items()) if self._progress() > moment else []
            if not alive:
                continue
            role, process = alive[int(which * len(alive))]
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                self.kills.append(Kill(role, moment))
                del self._planned[0]

    def _alive(self) -> dict[str, psutil.Process]:
        """The living actors, by class."""
        found = {}
        try:
            family = psutil.Process(self._pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        for process in family:
            try:
                title = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for role in self._roles:
                if title.startswith("ray::") and role in title:
                    found[role] = process
        return found
