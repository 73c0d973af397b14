"""PageHandle: the ring's hold of its labelling page, which knows all that a restarted page has lost."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_ray.actors.askings import LOST
from rlhf_ray.labelling.desk import Situation
from rlhf_ray.labelling.links import invitation
from rlhf_ray.labelling.serve import remember_port, remembered_port

logger = logging.getLogger(__name__)

PORT_WITHIN = 60.0
"""Seconds that a page waits for its port when another process has it. Open pages look for it there, with answers to deliver."""

RESUMED_WITHIN = 5.0
"""The same of a run that is resumed, whose port another run may have had for long."""


class PageHandle:
    """Starts the page, tells it how the training is doing, and brings it back where it was after it was killed.

    Args:
        actor: a `LabellingPage`.
        get: waits for what a call gives.
        asked_port: the port that the settings ask for.
        port_file: remembers the port for a run that is resumed; None: nothing does.
    """

    def __init__(self, actor: Any, get: Callable[[Any], Any], asked_port: int, port_file: Path | None = None):
        self.actor = actor
        self.links: dict[str, str] = {}
        """Where each person labels."""
        self.on_links: Callable[[dict[str, str]], None] = self._log_links
        """Is told the links when they have changed."""
        self._asked_port, self._port_file = asked_port, port_file
        self._port = port_file and remembered_port(port_file, asked_port)
        self._wait_until: float | None = None
        self._situation: Situation | None = None
        self._episode: Any = None
        while not self._serves(get(self._serve())):
            pass

    async def serve(self) -> None:
        """Bring a page back that was restarted."""
        while not self._serves(await self._serve()):
            pass

    async def show(self, films: Any) -> None:
        """Hand the page films, a reference, before it is asked about their clips. It keeps them on the disk."""
        with contextlib.suppress(*LOST):
            await self.actor.show.remote(films)

    def tell(self, situation: Situation) -> None:
        """Tell the page how the training is doing, where that has changed. Does not wait."""
        if situation != self._situation:
            self._situation = situation
            self.actor.tell.remote(situation)

    def show_episode(self, episode: Any) -> None:
        """Show people this film of an episode, once it is there. Does not wait."""
        self._episode = episode
        self.actor.tell.remote(None, episode)

    def _serve(self) -> Any:
        """Have the page served, by one that was restarted too: it is told everything first. The reference for `_serves`."""
        self.actor.tell.remote(self._situation)
        if self._episode is not None:  # apart, since a film can be lost with the node that holds it
            self.actor.tell.remote(None, self._episode)
        waiting = self._wait_until is None or time.monotonic() < self._wait_until
        return self.actor.start.remote(self._port if waiting else None)

    def _serves(self, links: dict[str, str] | None) -> bool:
        """Whether the page is served, given what `LabellingPage.start` gave. If not, call `_serve` again."""
        if links is None:
            if self._wait_until is None:
                within = PORT_WITHIN if self.links else RESUMED_WITHIN
                logger.warning(
                    "Another process has port %s of the labelling page. Waiting up to %.0f s for it, since open pages look "
                    "for the page there.",
                    self._port,
                    within,
                )
                self._wait_until = time.monotonic() + within
            return False
        moved, self.links, self._wait_until = self.links and self.links != links, links, None
        if links:  # else everybody was shut out
            self._port = urlsplit(next(iter(links.values()))).port
            if self._port_file is not None and self._port is not None:
                remember_port(self._port_file, self._asked_port, self._port)
        if moved:
            logger.warning("The labelling page has moved to port %s. Pages that are open can't reach it: "
                           "open the new link.", self._port)  # fmt: skip
            self.on_links(links)
        return True

    def _log_links(self, links: dict[str, str]) -> None:
        for line in invitation(links, "RUN" if self._port_file is None else self._port_file.parent):
            logger.warning("%s", line)
