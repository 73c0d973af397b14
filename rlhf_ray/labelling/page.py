"""The page of one store: its questions, its desk, and the server in front of them."""

from __future__ import annotations

import socket
from pathlib import Path

from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.labelling.recorder import Store
from rlhf_ray.labelling.serve import Server, allowed_hosts, links
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts
from rlhf_ray.settings import LabellingSettings


class Page:
    """Serves after `start`.

    Args:
        store: receives the answers.
        sessions: who may label.
        settings: settings of the page.
        title: title of the page.
        fps: frames per second of the environment.
        films: folder for films, which outlive a restart.
        run_id: id of the training run, stored with each event.
        seed: seeds sides and catch pairs.
        texts: the page's texts.
    """

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        settings: LabellingSettings,
        *,
        title: str,
        fps: float,
        films: Path,
        run_id: str | None = None,
        seed: int | None = None,
        texts: Texts = IN_ENGLISH,
    ):
        self._sessions, self._settings, self._title = sessions, settings, title
        self._server: Server | None = None
        queue = QuestionQueue(
            lease_seconds=settings.lease_seconds,
            overlap_share=settings.overlap_share,
            catch_share=settings.catch_share,
            catch_by_reward=settings.catch_by_reward,
            seed=seed,
        )
        self.desk = Desk(
            store,
            queue,
            sessions.key("leases"),
            fps=fps,
            run_id=run_id,
            films=films,
            channels=settings.channels,
            zoom=settings.zoom,
            texts=texts,
        )

    async def start(self, listening: socket.socket | None = None) -> None:
        """Serve on this socket, or at the address in the settings; returns when browsers can connect.

        Raises:
            SettingError: the page can't be served at the configured host or port.
        """
        from rlhf_ray.labelling.app import create_app  # imports a web server, which most runs don't need

        app = create_app(
            self.desk,
            self._sessions,
            hosts=allowed_hosts(self._settings),
            title=self._title,
            instructions=self._settings.instructions,
            texts=self.desk.texts,
        )
        server = Server(app, self._settings, listening)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            await self._server.stop()

    @property
    def started(self) -> bool:
        """Whether `start` has returned."""
        return self._server is not None

    @property
    def serving(self) -> bool:
        """Whether browsers can connect: started, and neither stopped nor interrupted by Ctrl-C."""
        return self._server is not None and self._server.serving

    def links(self) -> dict[str, str]:
        """Each annotator's link, once the page has started."""
        assert self._server is not None
        return links(self._sessions, self._settings, self._server.port)
