"""The desk: the object behind all requests of the labelling page. Joins the question queue, the store, films and progress."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_ray.data.answers import answer_of
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.labelling.answers import USED_ID, GroupCommit, Meaning, Past, Store, statistics
from rlhf_ray.labelling.films import Episode, Film, FilmInfo, Films
from rlhf_ray.labelling.messages import AnswerRequest, Lease, Leases, ShownQuestion
from rlhf_ray.labelling.questions import QuestionQueue, Shown
from rlhf_ray.labelling.second_looks import Doubt, SecondLooks, replacing
from rlhf_ray.labelling.situation import OpenPages, Situation, why_nothing
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import Suspicions

logger = logging.getLogger(__name__)

SHORTEST_CLIP = 1.5
"""Minimum duration of a clip at speed 1, in seconds. Shorter clips play slower than the environment, so that people can follow."""

LOST = "The answer stays: its clips can’t be shown again."

UI = "1"
"""Version of the page, stored with each answer."""


class Desk:
    """Serves questions to the page and stores its answers. All state that must survive a restart is in the store or in a lease.

    Args:
        store: receives the answers.
        secret: key that encrypts leases.
        settings: settings of the page.
        fps: frames per second of the environment.
        run_id: id of the training run, stored with each event.
        films: folder for films; with None, films are lost when the page restarts.
        seed: seeds sides and catch pairs.
        texts: the page's texts.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        settings: LabellingSettings,
        *,
        fps: float,
        run_id: str | None = None,
        films: Path | None = None,
        seed: int | None = None,
        texts: Texts = IN_ENGLISH,
    ):
        self.store, self.fps, self.run_id = store, fps, run_id
        self.queue = QuestionQueue(settings, seed)
        self.texts = texts
        self.changes = 0
        """Number of changes to the store so far."""
        self.changed = asyncio.Event()
        """Set on each change to the store; the waiter clears it."""
        self._leases = Leases(secret)
        self._past = Past(store, self.queue)
        self._recorder = GroupCommit(store)
        self._about: dict[str, tuple[int, int, float]] = {}
        """Per pair: its newest policy version, its reward version, and its frames per second at speed 1."""
        self._films = Films(films, settings.channels, settings.zoom)
        self._looks = SecondLooks(store, self._films, self._screen)
        self._reviewing = asyncio.Lock()
        self._under_way: dict[str, tuple[Meaning, asyncio.Task[None]]] = {}
        self._situation = Situation()
        self.pages = OpenPages()
        self._episode: tuple[Episode, float] | None = None
        self._count: tuple[float, int] | None = None

    # Called by the training.

    def show(self, films: Sequence[Film]) -> None:
        """Store films under the ids of their clips, for the questions to come."""
        for made in films:
            self._films.put(made)

    async def ask(self, number: int, pairs: Pairs) -> None:
        """Add pairs to the queue. Idempotent per ``number``.

        Args:
            number: the round's number.
            pairs: pairs of clips that were filmed (`show`), unless the observations are images.

        Raises:
            OSError: the clips could not be stored.
        """
        left, right = pairs.left.ids(), pairs.right.ids()
        await self.store.call(PreferenceStore.record, [], Fragments.concatenate([pairs.left, pairs.right]))
        fps = min(self.fps, pairs.left.length / SHORTEST_CLIP)
        for i, key in enumerate(pairs.ids):
            policy = max(int(pairs.left.policy_versions[i]), int(pairs.right.policy_versions[i]))
            self._about[key] = (policy, pairs.reward_version, fps)
        for names, side in ((left, pairs.left), (right, pairs.right)):
            for i, name in enumerate(names):
                if name not in self._films and is_image(side.observations[i, 0]):
                    self._films.put_images(name, side.observations[i])
        await self._past.recall()
        shown = [pair for pair in zip(left, right, strict=True) if pair[0] in self._films and pair[1] in self._films]
        if len(shown) < len(pairs):
            logger.warning("Skipping %d pairs whose films are lost.", len(pairs) - len(shown))
        self.queue.add(number, shown)

    def tell(self, situation: Situation | None, episode: Episode | None = None) -> None:
        """Update the training progress and the agent's latest episode; None leaves either unchanged."""
        if situation is not None and situation.ending is not None:
            self._count = None  # the last numbers that pages see are to be right
        self._situation = situation or self._situation
        if episode is not None:
            self._episode = (episode, time.monotonic())
            self.pages.episode = episode.film.info.id

    def suspect(self, suspicions: Suspicions) -> None:
        """Take the answers that the newest fit finds more likely wrong than right, for `doubts`."""
        self._looks.suspect(suspicions)

    # Called by the page.

    async def next(
        self, annotator: str, count: int, holding: Sequence[str], page: str | None = None
    ) -> list[ShownQuestion]:
        """Lease up to ``count`` more questions to ``annotator`` on this ``page``.

        ``holding`` are the leases that the page keeps: on screen, prefetched, or answered and not stored yet. Invalid leases are
        ignored. Questions held by a page of theirs that is gone move to this page.
        """
        keys = self._keys(annotator, holding)
        if self._situation.ending is not None:
            self.queue.release(annotator, keys)
            return []
        return [self._question(annotator, shown) for shown in self.queue.next(annotator, count, list(keys), page)]

    async def answer(self, annotator: str, request: AnswerRequest) -> None:
        """Store an answer durably. Idempotent per event id.

        Raises:
            ValueError: the lease is not this annotator's, has expired, or is already answered; or the event id is another event's.
            OSError: the answer could not be stored; retry.
        """
        lease = self._leases.read(request.lease, annotator)
        meaning = Meaning(annotator, lease.id, request.answer)
        if request.event_id not in self._under_way:
            # Before the first await, because the page asks for more questions at once.
            self.queue.answering(annotator, lease.shown.lease_key)
            task = asyncio.create_task(self._answer(annotator, request, lease, meaning))
            self._under_way[request.event_id] = meaning, task
            task.add_done_callback(lambda _: self._under_way.pop(request.event_id))
        known, task = self._under_way[request.event_id]
        if known != meaning:
            raise ValueError(USED_ID)
        await asyncio.shield(task)

    async def _answer(self, annotator: str, request: AnswerRequest, lease: Lease, meaning: Meaning) -> None:
        shown = lease.shown
        try:
            await self._past.recall()
            if self._past.knows(request.event_id, meaning):
                self.queue.stored_before(annotator, shown.lease_key)
                return
            if self._past.leases.setdefault(lease.id, request.event_id) != request.event_id:
                raise ValueError("This pair is already answered.")
            await self._record(request.event_id, annotator, **self._answer_values(request, lease))
        except BaseException:
            self.queue.not_stored(annotator, shown.lease_key)
            raise
        self._past.meanings[request.event_id] = meaning
        self.queue.answered(annotator, shown, request.answer, request.event_id)
        self._stored()

    async def undo(
        self, annotator: str, event_id: str, target: str | None = None, page: str | None = None
    ) -> ShownQuestion | None:
        """Undo the latest answer of ``annotator``, or their answer with event id ``target``, also if it was changed since.

        Returns the pair to show again; None if there is nothing to undo.

        Raises:
            ValueError: the event id is another event's, or the clips can't be shown again.
            OSError: the retraction could not be stored.
        """
        await self._past.recall()
        latest = self.queue.latest(annotator, target)
        if latest is None:
            return None
        event, shown = latest
        await self._looks.film([shown.left, shown.right])
        if shown.left not in self._films or shown.right not in self._films:
            raise ValueError(LOST)
        if event_id in self._under_way or event_id in self._past.meanings:
            raise ValueError(USED_ID)
        self._past.meanings[event_id] = Meaning(annotator, event, "undo")
        try:
            await self._record(event_id, annotator, kind="retract", target=event)
        except BaseException:
            del self._past.meanings[event_id]
            raise
        if self.queue.undone(annotator, event, page) is None:  # another page of theirs was faster
            return None
        self._stored()
        return self._question(annotator, shown)

    async def doubts(self) -> list[Doubt]:
        """The answers to look at again, the likeliest wrong first; see `rlhf_ray.labelling.second_looks`."""
        return await self._looks.listed(self.changes)

    async def review(self, owner: str, event_id: str, target: str, answer: str) -> None:
        """Store what ``owner`` thinks of the answer ``target``: the same to keep it, another to change it.

        The new answer replaces the old one as its annotator's, with a note of who looked at it again; it is not listed any more.
        Idempotent per event id.

        Raises:
            ValueError: the answer was taken back or replaced meanwhile, or is not suspicious; or the event id is another event's.
            OSError: the answer could not be stored; retry.
        """
        async with self._reviewing:
            await self._past.recall()
            meaning = Meaning(owner, target, answer)
            if event_id in self._under_way:
                raise ValueError(USED_ID)
            if self._past.knows(event_id, meaning):
                return
            row = await self._looks.find(target)
            if row is None:
                raise ValueError("This answer was changed meanwhile, or is no longer in doubt.")
            await self._record(event_id, row["annotator"], kind="supersede", **replacing(row, owner, answer))
            self._past.meanings[event_id] = meaning
            self.queue.replaced(row["annotator"], target, event_id)
            self._stored()

    async def renew(self, annotator: str, leases: Sequence[str], page: str | None = None) -> list[str]:
        """Renew the leases of ``annotator`` on this ``page``; returns those that the page has lost."""
        keys = self._keys(annotator, leases)
        return [keys[key] for key in self.queue.renew(annotator, keys, page)]

    async def release(self, annotator: str, leases: Sequence[str], page: str | None = None) -> None:
        """Release leases of ``annotator``, so that others may get the pairs; ``page`` is closed."""
        self.queue.release(annotator, self._keys(annotator, leases))
        self.pages.closed(page)

    async def film(self, film_id: str, page: str | None = None) -> bytes | None:
        """The film with this id, which ``page`` shows, as the bytes of a WebP file; None if it is not stored."""
        if self._episode is not None and self._episode[0].film.info.id == film_id:
            self.pages.saw(page, film_id)
            return self._episode[0].film.sheet
        await self._looks.film([film_id])  # of a pair from before a restart
        return await self._films.sheet(film_id)

    async def episode(self) -> dict[str, Any] | None:
        """The agent's latest full episode; None before the first."""
        if self._episode is None:
            return None
        episode, since = self._episode
        values = dataclasses.asdict(dataclasses.replace(episode, film=dataclasses.replace(episode.film, sheet=b"")))
        film = dataclasses.asdict(self._films.zoomed(episode.film.info))
        return values | {"film": film, "age_seconds": round(time.monotonic() - since, 1)}

    async def over(self, page: str | None = None, holding: int = 0) -> dict[str, Any]:
        """Whether labelling is over, in the response to a request of ``page``, which keeps ``holding`` leases.

        Returns:
            ``ended``: no answer is wanted any more, also to what is on screen. ``over``: what to show where there is no question,
            also when the server has gone; None if more questions may come.
        """
        ended = self._situation.ending is not None
        over = self._situation.over(await self._labels(), self.texts)
        self.pages.heard(page, told=ended or (over is not None and not holding))
        return {"ended": ended, "over": over}

    async def progress(self, annotator: str) -> dict[str, Any]:
        """Labelling progress, and the reason if there is nothing to label right now."""
        await self._past.recall()
        situation = self._situation
        queue = 0 if situation.ending is not None else self.queue.open(annotator)
        labels = await self._labels()
        return {
            "labels": labels,
            "wanted": situation.wanted,
            "own": self.queue.total(annotator),
            "per_minute": float(self.queue.per_minute(annotator)),
            "queue": queue,
            "env_steps": situation.env_steps,
            "total_env_steps": situation.total_env_steps,
            "first_labels": situation.first_labels,
            "reason": None
            if self.queue.ready(annotator)
            else why_nothing(self.queue, annotator, situation, self.texts),
        }

    async def statistics(self) -> dict[str, Any]:
        """Statistics of all annotators; see `rlhf_ray.labelling.answers.statistics`."""
        events = await self.store.call(PreferenceStore.events)
        weights = await self.store.call(PreferenceStore.weights)
        return await asyncio.to_thread(statistics, events, weights, self._situation.error_rates)

    async def knows(self, annotator: str) -> bool:
        """Whether the store has events of ``annotator``."""
        return annotator in (await self.store.call(PreferenceStore.events))["annotator"].unique().to_pylist()

    async def weigh(self, annotator: str, weight: float) -> None:
        """Set the weight of the labels of ``annotator``; 0 excludes them. Nothing is deleted.

        Raises:
            ValueError: the weight is invalid.
        """
        await self.store.call(PreferenceStore.weigh, annotator, weight)
        self._stored()

    # Internal.

    def _answer_values(self, request: AnswerRequest, lease: Lease) -> dict[str, Any]:
        """The values of an answer's event."""
        shown = lease.shown
        preference, broken = shown.preference(request.answer), answer_of(request.answer).broken
        policy, reward, _ = self._about.get(shown.key, (None, 0, 0))
        extra = {
            "answer": request.answer,
            "catch": shown.catch,
            "expected": shown.expected,
            "repeats": shown.repeats,
            "overlap": shown.overlap,
            "lease": lease.id,
            "hidden_ms": request.hidden_ms,
            "loops_left": request.loops_left,
            "loops_right": request.loops_right,
            "key": request.key,
            "ui": UI,
        }
        return {
            "kind": "flag" if broken else "skip" if preference is None else "check" if shown.catch else "label",
            "left_id": shown.left,
            "right_id": shown.right,
            "presented_swapped": shown.swapped,
            "preference": preference,
            "t_shown": lease.time,
            "view_ms": request.view_ms,
            "policy_version": policy,
            "reward_version": reward,
            "extra": extra,
        }

    async def _record(self, event_id: str, annotator: str, **values: Any) -> None:
        now = datetime.now(UTC)
        await self._recorder.store(Event(event_id, annotator=annotator, t_answered=now, run_id=self.run_id, **values))

    def _keys(self, annotator: str, leases: Sequence[str]) -> dict[str, str]:
        """The valid leases, by `Shown.lease_key`."""
        keys = {}
        for lease in leases:
            with contextlib.suppress(ValueError):
                keys[self._leases.read(lease, annotator).shown.lease_key] = lease
        return keys

    def _question(self, annotator: str, shown: Shown) -> ShownQuestion:
        lease = self._leases.write(Lease(annotator, shown, time.time()))
        return ShownQuestion(lease, *self._screen(shown), self.queue.lease_seconds)

    def _screen(self, shown: Shown) -> tuple[FilmInfo, FilmInfo, float]:
        """The films by screen side, and their frames per second at speed 1."""
        left, right = self._films.info(shown.left), self._films.info(shown.right)
        if shown.swapped:
            left, right = right, left
        frames = max(left.frames, right.frames)
        fps = self._about.get(shown.key, (0, 0, min(self.fps, (frames - 1) / SHORTEST_CLIP)))[2]
        return left, right, fps

    def _stored(self) -> None:
        self.changes += 1
        self.changed.set()

    async def _labels(self) -> int:
        """Number of valid labels, counted at most once a second."""
        if self._count is None or time.monotonic() - self._count[0] > 1.0:
            known = self._count[1] if self._count else 0
            self._count = (time.monotonic(), known)  # concurrent calls don't count again
            self._count = (time.monotonic(), await self.store.call(PreferenceStore.__len__))
        return self._count[1]
