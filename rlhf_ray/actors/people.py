"""People: the human annotators of a run, the actor that serves their labelling page, their questions and the progress they see."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_ray.actors.executor import Actor, Ref, passed
from rlhf_ray.actors.gatherer import PATIENCE, GathererProgress, OpenQuestions
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.serve import Server, links, listen_at, remember_port, remembered_port, warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.situation import OPEN_FOR, Ending, Situation
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts, load_texts
from rlhf_ray.labelling.waiting import Waiting
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.answers import Suspicions

logger = logging.getLogger(__name__)

TRY_EVERY = 0.1
"""Seconds between attempts to bind a port that is in use."""

PORT_WITHIN = 60.0
"""Seconds that a page waits for its port if another process uses it. Open pages look for it there, with answers to deliver."""

RESUMED_WITHIN = 5.0
"""The same for a resumed run, whose port another run may use permanently."""

ASK_EVERY = 0.2
"""Seconds between two looks at whether all pages know that labelling is over."""

STOPPED_WITHIN = 3.0
"""Seconds in which open pages are told that the run was stopped: those in the foreground ask every two seconds."""

PACE_OF = 20
"""Number of newest iterations of the agent used to estimate the pace of the next ones."""

OPEN_PER_PERSON = 8
"""Maximum number of open questions per person. Few, so that questions are about the agent's current behaviour."""


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
        from rlhf_ray.labelling.desk import Desk  # most runs ask no people

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


class PageHandle:
    """Starts the page, reports the training's progress to it, and restores it after it was killed."""

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
        """Tell all open pages that labelling is over. Wait up to ``within`` seconds for them to ask, or until ``stop()``."""
        last = self._situation or Situation()
        self.tell(replace(last, ending=ending, env_steps=last.env_steps if env_steps is None else env_steps))
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
            logger.warning(
                "The labelling page has moved to port %s. Open pages can't reach it: use the new link.", self._port
            )
            self._callbacks.on_links(links)
        return True


class People:
    """The human annotators at the page.

    Args:
        limit: maximum number of open questions; None in the synchronous mode, where all questions of a round are open.
    """

    def __init__(
        self,
        page: PageHandle,
        schedule: LabelSchedule,
        total_env_steps: int,
        callbacks: RingCallbacks,
        *,
        share: float,
        limit: int | None,
        annotators: tuple[str, ...],
    ):
        self.page, self.schedule, self.total_env_steps = page, schedule, total_env_steps
        if limit is not None:
            limit = min(limit, OPEN_PER_PERSON * max(1, len(page.links)))
        self.questions = OpenQuestions(
            page.actor, "people", share=share, limit=limit, annotators=annotators, sees_films=True, serve=page.serve
        )
        self._pace: deque[tuple[float, float]] = deque(maxlen=PACE_OF)
        """Time (seconds since 1970) and training progress (0 to 1) at recent iterations."""
        self._between: float | None = None
        """In the synchronous mode: seconds between the last answer of a round and the next question."""
        self._answered_at: float | None = None
        self.waiting_for = "the agent's first clips"
        """What the page waits for before the next questions, in words."""
        self.error_rates: Mapping[str, ErrorRate] = {}
        """Each annotator's error rate, by the newest fit."""
        self.gathered: float | None = None
        """Share of the first clips that are made, while the page waits for these."""
        self._waiting = Waiting(callbacks.on_wait)
        self._ending: Ending | None = None
        self._heard = 0, time.monotonic()
        """The page's number of changes, and when it last changed or no question was open."""
        self._unanswered = 0.0

    def look(self) -> None:
        """Measure for how long nobody has answered. Called about once a second."""
        now, changes = time.monotonic(), self.questions.changes
        if not self.questions.open or changes != self._heard[0]:
            self._heard = changes, now
        self._unanswered = max(self._unanswered, now - self._heard[1])

    def waiting(self, answered: int, wanted: int) -> None:
        """Note that the training waits for ``wanted`` answers, of which ``answered`` are given; `end_wait` follows."""
        self._waiting.look(answered, wanted, self.questions.pages)

    def end_wait(self) -> None:
        """Note that the training waits no longer."""
        self._waiting.end()

    def metrics(self) -> dict[str, float]:
        """Return `unanswered_seconds` since the last call."""
        longest, self._unanswered = self._unanswered, 0.0
        return {"unanswered_seconds": longest}

    @property
    def left(self) -> bool:
        """Whether they were told that labelling is over."""
        return self._ending is not None

    def farewell(
        self,
        ending: Ending,
        stop: Callable[[], bool] = lambda: False,
        env_steps: int | None = None,
    ) -> None:
        """Tell open pages that labelling is over, once. Wait until each knows: up to a minute, less if the run was stopped."""
        if self.left:
            return
        self._ending = ending
        within = STOPPED_WITHIN if ending == "stopped" else OPEN_FOR
        self.page.farewell(ending, within, stop, env_steps)

    def advanced(self, progress: float) -> None:
        """Record the training's progress, 0 to 1."""
        self._pace.append((time.time(), progress))

    def tell(self, env_steps: int, version: int, answered: int) -> None:
        """Send the training's progress to the page if it has changed."""
        preferences = self.schedule.preferences
        self.page.tell(
            Situation(
                preferences.comparisons,
                env_steps,
                self.total_env_steps,
                waiting_for=self.waiting_for,
                gathered=self.gathered,
                first_labels=None if version else self.schedule.first_fit,
                next_question=self._next_question(answered) if version else None,
                ending=self._ending,
                error_rates=self.error_rates,
            )
        )

    def tell_while_training(self, env_steps: int, version: int, answered: int, *, gathered: float | None) -> None:
        """Send the training's progress to the page, and what it waits for before the next questions.

        ``gathered`` is the share of the first clips that are made; None once all are.
        """
        self.gathered = gathered
        if gathered is None and version:
            self.waiting_for = "the training to continue (questions are spread over it)"
        elif gathered is None and answered >= self.schedule.first_fit:
            self.waiting_for = "the reward model to learn from these first answers"
        else:
            self.waiting_for = "the agent's first clips"
        self.tell(env_steps, version, answered)

    def suspect(self, suspicions: Suspicions) -> None:
        """Show people the answers that the newest fit finds more likely wrong than right."""
        self.page.suspect(suspicions)

    def asks(self) -> None:
        """Note that a round starts and waits for answers."""
        self._between = None if self._answered_at is None else time.time() - self._answered_at

    def has_answered(self, env_steps: int, version: int, answered: int) -> None:
        """Note that all questions of a round are answered."""
        self._answered_at = time.time()
        self.waiting_for = "the agent to learn from this round"
        self.tell(env_steps, version, answered)

    def _next_question(self, answered: int) -> float | None:
        """Estimate the time of the next question, in seconds since 1970; None if unknown."""
        preferences = self.schedule.preferences
        if preferences.mode == "synchronous":
            return None if self._between is None or self._answered_at is None else self._answered_at + self._between
        if not self.questions.share:  # they are asked what the machine can't tell, whenever that is
            return None
        label = answered + self.questions.open + 1
        if self.questions.share < 1.0:
            label = math.ceil(label / self.questions.share)
        pace = list(self._pace)
        if label > preferences.comparisons or len(pace) < 2 or pace[-1][1] <= pace[0][1]:
            return None
        (began, first), (ended, last) = pace[0], pace[-1]
        iterations = len(pace) - 1
        # Questions come between two iterations of the agent, at the earliest after the next one.
        ahead = max(1, math.ceil((self.schedule.progress_due(label) - last) * iterations / (last - first)))
        return ended + ahead * (ended - began) / iterations
