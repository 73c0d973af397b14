"""Kills: a run's Ray actors, by kill -9 of their processes, at moments drawn from a seed. Used by learning.py and a test."""

from __future__ import annotations

import random
import signal
import threading
import time
from dataclasses import dataclass

import psutil

ROLES = (
    "SingleAgentEnvRunner",
    "Fragmenter",
    "SyntheticGatherer",
    "PreferenceStore",
    "RewardTrainerActor",
    "RolloutCollector",
)
"""What Ray calls their processes."""


@dataclass(frozen=True)
class Kill:
    """One kill: the actor's class and the seconds since the killing began."""

    role: str
    seconds: float


class Killer:
    """Kills ``count`` actors among the descendants of process ``pid``, from when they are all there.

    Args:
        pid: of the run.
        count: kills in all.
        seed: of the moments and of which actors.
        mean_seconds: between two kills, on average (exponentially distributed).
        roles: which actors.
    """

    def __init__(self, pid: int, count: int, seed: int, mean_seconds: float, roles: tuple[str, ...] = ROLES):
        self.kills: list[Kill] = []
        self._pid, self._count, self._mean, self._roles = pid, count, mean_seconds, roles
        self._draw = random.Random(seed)
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
        while not self._stop.wait(0.5) and len(self._alive()) < len(self._roles):
            pass
        started = time.monotonic()
        while len(self.kills) < self._count and not self._stop.wait(self._draw.expovariate(1 / self._mean)):
            alive = self._alive()
            role = self._draw.choice(self._roles)  # drawn before looking: the schedule does not depend on who is alive
            if role in alive:
                try:
                    alive[role].send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
                self.kills.append(Kill(role, time.monotonic() - started))

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
