"""RingCallbacks: the one callback interface of a ring, passed when the ring is built."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from rlhf_ray.labelling.sessions import invitation
from rlhf_ray.labelling.waiting import PeopleWait

logger = logging.getLogger(__name__)


class RingCallbacks(Protocol):
    """What a ring reports while the training waits for it. `rlhf_ray.runs.callbacks.Callbacks` is one."""

    def on_stage(self, stage: str) -> None:
        """Called when the ring enters a stage before the first iteration: "fitting …"."""
        return

    def on_links(self, links: dict[str, str]) -> None:
        """Called with the annotators' links, by name, after they change."""

    def on_wait(self, wait: PeopleWait) -> None:
        """Called about once a second while the training waits for people."""


class Logs(RingCallbacks):
    """A `RingCallbacks` that logs what a program without one of its own should see: new links, and that nobody answers.

    Args:
        run: the run's folder, for instructions; None if there is none.
    """

    def __init__(self, run: Path | None = None):
        self._run = run

    def on_links(self, links: dict[str, str]) -> None:
        for line in invitation(links, self._run or "RUN"):
            logger.warning("%s", line)

    def on_wait(self, wait: PeopleWait) -> None:
        if wait.alarm is not None:
            logger.warning("%s", wait.alarm)
