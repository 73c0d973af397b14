"""LabellingPage: an actor that serves the page where people compare clips, from its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.gatherer import PATIENCE, GathererProgress
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.serve import Server, links, listen_at, warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.situation import Situation
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts, load_texts
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.answers import Suspicions

TRY_EVERY = 0.1
"""Seconds between attempts to bind a port that is in use."""


@dataclass(frozen=True)
class PageSettings:
    """Settings of a page.

    Attributes:
        sessions: file with the annotators and their tokens. A file, because Ray shows an actor's arguments to anyone with the
            cluster's token.
        seed: seeds sides and catch pairs.
        port_file: stores the port for a resumed run, on the disk of the ring's process; None stores nothing.
        texts: the page's texts. Read by the run's process, which has the user's file.
    """

    settings: LabellingSettings
    sessions: Path
    title: str
    fps: float
    run_id: str
    seed: int
    port_file: Path | None = None
    texts: Texts = IN_ENGLISH

    @classmethod
    def read(
        cls,
        settings: LabellingSettings,
        sessions: Path,
        title: str,
        fps: float,
        run_id: str,
        seed: int,
        port: Path | None,
    ) -> PageSettings:
        """Keep the annotators' links in ``sessions``, so that they stay valid when training continues, and read the texts.

        Raises:
            SettingError: the links or texts can't be read.
        """
        Sessions.keep(sessions, settings.annotators)
        warn_of_readers(settings)
        return cls(settings, sessions, title, fps, run_id, seed, port, load_texts(settings.language))


class LabellingPage:
    """Serves the page from the run's node. Answers go directly to the store, and are acknowledged once stored.

    A restarted page has lost its questions, port and status; its `PageHandle` restores them. Leases and sessions stay valid.
    """

    def __init__(self, page: PageSettings, store: Callable[[], Actor[PreferenceStore]]):
        self.settings = page.settings
        self.title, self.sessions = page.title, Sessions.load(page.sessions)
        self.desk = Desk(
            store(),
            self.sessions.key("leases"),
            page.settings,
            fps=page.fps,
            run_id=page.run_id,
            films=page.sessions.with_suffix(".films"),
            seed=page.seed,
            texts=page.texts,
        )
        self._server: Server | None = None
        self._starting = asyncio.Lock()

    async def start(self, port: int | None = None) -> dict[str, str] | None:
        """Start serving the page, unless it is being served.

        Args:
            port: the only port to use; None for the first free one, starting with that of the settings.

        Returns:
            Each annotator's link; None if another process uses the port for longer than `PATIENCE`.

        Raises:
            SettingError: the page can't be served at the configured host or port.
        """
        from rlhf_ray.labelling.app import create_app  # imports a web server, which most runs don't need

        async with self._starting:
            if self._server is None:
                listening = None if port is None else await self._listen_at(port)
                if port is not None and listening is None:
                    return None
                app = create_app(self.desk, self.sessions, self.settings, self.title)
                server = Server(app, self.settings, listening)
                await server.start()
                self._server = server
        return links(self.sessions, self.settings, self._server.port)

    async def _listen_at(self, port: int) -> socket.socket | None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return listen_at(self.settings.host, port)
            await asyncio.sleep(TRY_EVERY)
        return None

    async def ask(self, number: int, pairs: Pairs) -> None:
        await self.desk.ask(number, pairs)

    async def show(self, films: Sequence[Film]) -> None:
        self.desk.show(films)

    async def tell(self, situation: Situation | None, episode: Episode | None = None) -> None:
        self.desk.tell(situation, episode)

    async def suspect(self, suspicions: Suspicions) -> None:
        self.desk.suspect(suspicions)

    async def wait(self, numbers: Sequence[int], changes: int) -> GathererProgress:
        desk = self.desk
        if desk.changes == changes and self._server is not None:
            desk.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(desk.changed.wait(), PATIENCE)
        known = desk.queue.numbers
        return GathererProgress(
            desk.changes,
            {number: desk.queue.left(number) for number in numbers if number in known},
            tuple(number for number in numbers if number not in known),
            serving=self._server is not None,
            pages=desk.pages.open,
        )

    async def untold(self) -> int:
        """Return the number of open pages that don't show yet that labelling is over."""
        return self.desk.pages.uninformed
