"""LabellingPage: the page where people compare clips, as an actor that serves it from its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlhf_ray.actors.gatherer import PATIENCE, GathererProgress
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling.desk import Desk, Situation
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.labelling.serve import Server, allowed_hosts, links, listen_at
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import Event

TRY_EVERY = 0.1
"""Seconds between two tries to have a port that is taken."""


@dataclass(frozen=True)
class PageSettings:
    """What a page is made from.

    Attributes:
        settings: of the labelling.
        sessions: the file with who may label, and their tokens. Ray shows what an actor is made from to everyone with the
            cluster's token, so they are not in here.
        title: of the page: what is trained.
        fps: of the environment.
        run_id: for the events.
        seed: of sides and catch pairs.
        port_file: remembers the port for a run that is resumed, on the disk of the ring's process; None: nothing does.
    """

    settings: LabellingSettings
    sessions: Path
    title: str
    fps: float
    run_id: str
    seed: int
    port_file: Path | None = None


class ActorStore:
    """The preference store's actor, for a `Desk`."""

    def __init__(self, store: Any):
        self._store = store

    async def record(self, events: Sequence[Event], clips: Fragments | None = None) -> int:
        """See `PreferenceStore.record`."""
        new: int = await self._store.record.remote(list(events), clips)
        return new

    async def events(self) -> pa.Table:
        """See `PreferenceStore.events`."""
        return await self._store.events.remote()

    async def count(self) -> int:
        """How many comparisons hold."""
        count: int = await self._store.__len__.remote()
        return count

    async def weights(self) -> dict[str, float]:
        """See `PreferenceStore.weights`."""
        weights: dict[str, float] = await self._store.weights.remote()
        return weights

    async def weigh(self, annotator: str, weight: float) -> None:
        """See `PreferenceStore.weigh`."""
        await self._store.weigh.remote(annotator, weight)


class LabellingPage:
    """Serves the page from the run's node. Answers go straight to the store, and are acknowledged when stored.

    A page that is restarted has lost its questions, its port and what it was told: whoever holds it (`PageHandle`) says all of
    that again. Leases and sessions stay valid.

    Args:
        page: what it is made from.
        store: finds the preference store's actor.
    """

    def __init__(self, page: PageSettings, store: Callable[[], Any]):
        self.page = page
        self.sessions = Sessions.load(page.sessions)
        of = page.settings
        queue = QuestionQueue(
            lease_seconds=of.lease_seconds,
            overlap_share=of.overlap_share,
            catch_share=of.catch_share,
            catch_by_reward=of.catch_by_reward,
            seed=page.seed,
        )
        self.desk = Desk(
            ActorStore(store()),
            queue,
            self.sessions.key("leases"),
            fps=page.fps,
            run_id=page.run_id,
            films=page.sessions.with_suffix(".films"),
        )
        self._server: Server | None = None
        self._starting = asyncio.Lock()

    async def start(self, port: int | None = None) -> dict[str, str] | None:
        """Serve the page, if it is not served yet.

        Args:
            port: to listen at, and no other; None: the first free one from that of the settings on.

        Returns:
            Each person's link; None where another process has the port, for longer than `PATIENCE`.

        Raises:
            SettingError: it cannot be served where the settings say.
        """
        from rlhf_ray.labelling.app import create_app  # a server, which most runs have no use for

        async with self._starting:
            if self._server is None:
                of = self.page.settings
                app = create_app(
                    self.desk,
                    self.sessions,
                    hosts=allowed_hosts(of),
                    title=self.page.title,
                    instructions=of.instructions,
                )
                listening = None if port is None else await self._listen_at(port)
                if port is not None and listening is None:
                    return None
                server = Server(app, of, listening)
                await server.start()
                self._server = server
        return links(self.sessions, self.page.settings, self._server.port)

    async def _listen_at(self, port: int) -> socket.socket | None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return listen_at(self.page.settings.host, port)
            await asyncio.sleep(TRY_EVERY)
        return None

    async def ask(self, number: int, pairs: Pairs) -> None:
        """See `Desk.ask`."""
        await self.desk.ask(number, pairs)

    async def show(self, films: Sequence[Film]) -> None:
        """See `Desk.show`."""
        self.desk.show(films)

    async def tell(self, situation: Situation | None, episode: Episode | None = None) -> None:
        """See `Desk.tell`."""
        self.desk.tell(situation, episode)

    async def wait(self, numbers: Sequence[int], changes: int) -> GathererProgress:
        """See `rlhf_ray.actors.gatherer.GathererActor.wait`.

        Args:
            numbers: of the askings to tell about.
            changes: `GathererProgress.changes` of the last call.
        """
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
        )
