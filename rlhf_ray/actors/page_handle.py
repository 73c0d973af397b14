"""PageHandle: the ring's access to its labelling page, with the state to restore after a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_ray.actors.executor import Actor, Ref, passed
from rlhf_ray.actors.labelling_page import LabellingPage
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.labelling.films import Episode
from rlhf_ray.labelling.serve import remember_port, remembered_port
from rlhf_ray.labelling.situation import Ending, Situation
from rlhf_ray.store.answers import Suspicions

logger = logging.getLogger(__name__)

PORT_WITHIN = 60.0
"""Seconds that a page waits for its port if another process uses it. Open pages look for it there, with answers to deliver."""

RESUMED_WITHIN = 5.0
"""The same for a resumed run, whose port another run may use permanently."""

ASK_EVERY = 0.2
"""Seconds between two looks at whether all pages know that labelling is over."""


class PageHandle:
    """Starts the page, reports the training's progress to it, and restores it after it was killed.

    Args:
        actor: the page.
        callbacks: told of new links.
        get: waits for the result of an actor call.
        asked_port: the configured port.
        port_file: stores the port for a resumed run; None stores nothing.
    """

    def __init__(
        self,
        actor: Actor[LabellingPage],
        callbacks: RingCallbacks,
        get: Callable[..., Any],
        asked_port: int,
        port_file: Path | None = None,
    ):
        self.actor, self._callbacks = actor, callbacks
        self.links: dict[str, str] = {}
        """Each annotator's link."""
        self._get, self._asked_port, self._port_file = get, asked_port, port_file
        self._port = None if port_file is None else remembered_port(port_file, asked_port)
        self._wait_until: float | None = None
        self._situation: Situation | None = None
        self._episode: Ref[Episode | None] | None = None
        self._suspicions: Suspicions = {}
        while not self._serves(get(self._serve())):
            pass

    async def serve(self) -> None:
        """Restore a restarted page."""
        while not self._serves(await self._serve()):
            pass

    def tell(self, situation: Situation) -> None:
        """Send the training's progress to the page if it has changed. Doesn't wait."""
        if situation != self._situation:
            self._situation = situation
            self.actor.call(LabellingPage.tell, situation)

    def suspect(self, suspicions: Suspicions) -> None:
        """Send the answers that the newest fit finds more likely wrong than right. Doesn't wait."""
        self._suspicions = suspicions
        self.actor.call(LabellingPage.suspect, suspicions)

    def farewell(
        self, ending: Ending, within: float, stop: Callable[[], bool] = lambda: False, env_steps: int | None = None
    ) -> None:
        """Tell all open pages that labelling is over.

        Args:
            ending: why.
            within: seconds to wait for the pages to ask.
            stop: polled; True ends the wait.
            env_steps: the training's environment steps; None: as told last.
        """
        last = self._situation or Situation()
        self.tell(
            dataclasses.replace(last, ending=ending, env_steps=last.env_steps if env_steps is None else env_steps)
        )
        deadline = time.monotonic() + within
        with contextlib.suppress(Exception):  # the page may be gone
            while (
                time.monotonic() < deadline and not stop() and self._get(self.actor.call(LabellingPage.untold), within)
            ):
                time.sleep(ASK_EVERY)

    def show_episode(self, episode: Ref[Episode | None]) -> None:
        """Send the film of an episode once it is available. Doesn't wait."""
        self._episode = episode
        self.actor.call(LabellingPage.tell, None, passed(episode))

    def _serve(self) -> Ref[dict[str, str] | None]:
        """Send the state to the page, which may have been restarted, and start it. Return a reference for `_serves`."""
        self.actor.call(LabellingPage.tell, self._situation)
        self.actor.call(LabellingPage.suspect, self._suspicions)
        if self._episode is not None:  # separately, since a film can be lost with its node
            self.actor.call(LabellingPage.tell, None, passed(self._episode))
        waiting = self._wait_until is None or time.monotonic() < self._wait_until
        return self.actor.call(LabellingPage.start, self._port if waiting else None)

    def _serves(self, links: dict[str, str] | None) -> bool:
        """Process the result of `LabellingPage.start`; return whether the page is served. If not, call `_serve` again."""
        if links is None:
            if self._wait_until is None:
                within = PORT_WITHIN if self.links else RESUMED_WITHIN
                logger.warning(
                    "Another process uses port %s of the labelling page. Waiting up to %.0f s for it, because open pages look "
                    "for the page there.",
                    self._port,
                    within,
                )
                self._wait_until = time.monotonic() + within
            return False
        moved, self.links, self._wait_until = self.links and self.links != links, links, None
        if links:  # empty if all annotators were removed
            self._port = urlsplit(next(iter(links.values()))).port
            if self._port_file is not None and self._port is not None:
                remember_port(self._port_file, self._asked_port, self._port)
        if moved:
            logger.warning("The labelling page has moved to port %s. Open pages can't reach it: "
                           "use the new link.", self._port)  # fmt: skip
            self._callbacks.on_links(links)
        return True
