"""GathererActor: runs a gatherer and reports its number of open questions to the ring."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rlhf_ray.actors.executor import Actor, CallThread, Ref, passed
from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import blaming, cause
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.labelling.camera import picture
from rlhf_ray.labelling.films import Film, Films, frames_of
from rlhf_ray.queries.gatherers import DESERTED, Gatherer
from rlhf_ray.queries.machine import NAME as MACHINE
from rlhf_ray.store import PreferenceStore

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds after which `wait` returns without news."""

COMMIT_AGAIN_AFTER = 5.0
"""Seconds before the next attempt to store answers after a failed one."""

FILMS = "gatherer.films"
"""Folder beside the store, for the films of a gatherer that wants some."""


@dataclass(frozen=True)
class GathererProgress:
    """State of a gatherer.

    Attributes:
        changes: number of commits since it started.
        open: number of unanswered questions of each requested batch.
        unknown: requested batches that it doesn't know, because it was restarted.
        last: number of the last event that it stored; None if not reported.
        failed: number of failed commits since it started.
        serving: whether people can reach it.
        pages: number of open labelling pages; None without people.
        deserted: whether all annotators have left.
        referred: pairs that people are to be asked about, since the last time.
        lines: what the user is to be told, since the last time.
    """

    changes: int
    open: dict[int, int]
    unknown: tuple[int, ...] = ()
    last: int | None = None
    failed: int = 0
    serving: bool = True
    pages: int | None = None
    deserted: bool = False
    referred: tuple[Pairs, ...] = ()
    lines: tuple[str, ...] = ()


class ShownFrames:
    """The frames that people would see of fragments: image observations, or what was filmed.

    Args:
        folder: where films are stored, for a restarted actor or a resumed run; None: in memory only.
    """

    def __init__(self, folder: Path | None = None):
        self._films = Films(folder)

    def put(self, films: Sequence[Film]) -> None:
        """Store films."""
        for made in films:
            self._films.put(made)

    def has(self, pairs: Pairs) -> BoolArray:
        """Return for each pair whether both sides can be seen, ``[n]``: films can be lost with a node."""
        sides = (pairs.left, pairs.right)
        if is_image(pairs.left.observations[0, 0]):
            return np.ones(len(pairs), bool)
        seen: BoolArray = np.all([[name in self._films for name in side.ids()] for side in sides], axis=0)
        return seen

    def __call__(self, fragments: Fragments) -> list[Array]:
        """Return the frames of each fragment, ``[length + 1, height, width, 3]`` uint8."""
        if is_image(fragments.observations[0, 0]):
            return [np.stack([picture(frame) for frame in frames]) for frames in fragments.observations]
        return [frames_of(self._films.film(name)) for name in fragments.ids()]


class GathererActor:
    """Runs a gatherer in a thread and commits its answers to the store. Batches are answered one after the other.

    Args:
        make: makes the gatherer from what `Gatherer` may take.
        folder: the run's, for films and what else must outlast a restart; None: in memory only.
        refers: whether there are people to refer pairs to.
    """

    def __init__(
        self,
        make: Callable[..., Gatherer],
        store: Callable[[], Actor[PreferenceStore]],
        get: Callable[[Ref[Any]], Any],
        name: str = "scripted",
        wants_films: bool = False,
        folder: Path | None = None,
        refers: bool = False,
    ):
        self._frames = ShownFrames(None if folder is None else folder / FILMS) if wants_films else None
        offered: dict[str, Any] = {"films": self._frames, "folder": folder, "tell": self._tell}
        offered |= {"refer": self._refer, "answered": self._answered} if refers else {}
        self._gatherer, self._name = make(commit=self._commit, skip=self._skip, **offered), name
        self._find_store, self._get = store, get
        self._store: Actor[PreferenceStore] | None = None
        self._thread = CallThread("gatherer")
        self._left: dict[int, set[str]] = {}
        """Ids of each batch's unanswered pairs."""
        self._error: BaseException | None = None
        self._changes = self._failed = 0
        self._referred: list[Pairs] = []
        self._lines: list[str] = []
        self._last: int | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    async def ask(self, number: int, pairs: Pairs) -> None:
        """Start answering a batch of pairs. Idempotent per ``number``."""
        if number in self._left:
            return
        self._loop = asyncio.get_running_loop()
        self._left[number] = set(pairs.ids)
        self._thread.submit(functools.partial(self._answer, number, pairs))

    def show(self, films: Sequence[Film]) -> None:
        """Store films of fragments, for questions about them."""
        if self._frames is not None:
            self._frames.put(films)

    async def wait(self, numbers: Sequence[int], changes: int) -> GathererProgress:
        """Return the state once it differs from ``changes``, or after a short wait.

        Raises:
            Exception: the gatherer raised it.
        """
        told = self._error is not None or self._lines
        if self._changes == changes and not told and all(number in self._left for number in numbers):
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), PATIENCE)
        if self._error is not None:
            raise self._error
        referred, self._referred = tuple(self._referred), []
        lines, self._lines = tuple(self._lines), []
        return GathererProgress(
            self._changes,
            {number: len(self._left[number]) for number in numbers if number in self._left},
            tuple(number for number in numbers if number not in self._left),
            self._last,
            self._failed,
            deserted=bool(getattr(self._gatherer, "deserted", False)),
            referred=referred,
            lines=lines,
        )

    def end(self) -> None:
        """Store nothing more, not even what could not be stored yet."""
        self._ended = True
        self._thread.end()

    # Runs in the thread.

    def _answer(self, number: int, pairs: Pairs) -> None:
        if self._error is not None:  # the run ends, and asks again when it is resumed
            return
        try:
            pairs = self._seen(pairs)
            if len(pairs):
                with blaming({"preferences.gatherer": self._name}):
                    self._gatherer.ask(number, copy.deepcopy(pairs))  # it may change them in place
            if not self._changes and not self._get(self._find_store().call(PreferenceStore.tally)).comparisons:
                raise SettingError(
                    f"preferences.gatherer: {type(self._gatherer).__name__} returned from the first {len(pairs)} pairs without an "
                    "answer. `ask` must pass answers to `commit`, and return only when no more are expected."
                )
        except BaseException as error:
            self._error = error
        else:
            self._left[number].clear()  # the remaining pairs stay unanswered
        self._wake()

    def _seen(self, pairs: Pairs) -> Pairs:
        """Leave out pairs whose films are lost."""
        if self._frames is None or (seen := self._frames.has(pairs)).all():
            return pairs
        logger.warning("Skipping %d pairs whose films are lost.", int((~seen).sum()))
        return pairs[seen]

    def _commit(self, answers: Comparisons) -> None:
        names = answers.annotators or (type(self._gatherer).__name__,) * len(answers)
        self._keep(answers.pairs, names, lambda rows: (PreferenceStore.commit, answers[rows]))

    def _skip(self, pairs: Pairs, annotators: Sequence[str]) -> None:
        self._keep(pairs, annotators, lambda rows: (PreferenceStore.skip, pairs[rows]))

    def _tell(self, line: str) -> None:
        self._lines.append(line)
        self._wake()

    def _answered(self) -> set[str]:
        """Return the ids of the pairs that others than a machine have answered or skipped."""
        store = self._store = self._store or self._find_store()
        events = self._get(store.call(PreferenceStore.events))
        columns = (events[name].to_pylist() for name in ("pair_id", "annotator"))
        return {pair for pair, annotator in zip(*columns, strict=True) if annotator != MACHINE}

    def _refer(self, pairs: Pairs) -> None:
        self._referred.append(pairs)
        self._changes += 1
        self._wake()

    def _keep(
        self, pairs: Pairs, annotators: Sequence[str], said: Callable[[BoolArray], tuple[Callable[..., int], Any]]
    ) -> None:
        """Store what was said about ``pairs``, by annotator; repeat until it is stored."""
        store = self._store = self._store or self._find_store()
        names = np.array(annotators)
        last = 0
        while True:
            if self._ended:
                return
            try:
                for name in dict.fromkeys(names.tolist()):
                    method, of_rows = said(rows := names == name)
                    self._get(store.call(method, of_rows, annotator=name))
                    ids = pairs[rows].ids
                    last = max(last, self._get(store.call(PreferenceStore.last_answer, ids, name)))
                break
            except OSError as error:  # for example a full disk: keep the answers and retry
                self._failed += 1
                self._wake()
                logger.error("Can't store answers; retrying in %.0f s: %s", COMMIT_AGAIN_AFTER, cause(error))
                time.sleep(COMMIT_AGAIN_AFTER)
        self._last = max(last, self._last or 0)
        for left in self._left.values():
            left.difference_update(pairs.ids)
        self._changes += 1
        self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


LOST = (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
"""Errors from reading an object whose node is gone."""


@dataclass(frozen=True)
class ChosenPairs:
    """A batch of pairs to ask about.

    Attributes:
        number: the batch's number; it never stands for other pairs.
        pairs: reference of the pairs.
        count: number of pairs, 1 or more.
    """

    number: int
    pairs: Ref[Pairs]
    count: int


async def _nothing() -> None:
    pass


class OpenQuestions:
    """The ring's view of a gatherer.

    Only the gatherer knows which questions are open. The pairs are kept here until all are answered, to send them again to a
    restarted gatherer or in a resumed run.

    Args:
        actor: gets the pairs answered: a `GathererActor`, or a `LabellingPage`, which has the same methods.
        share: its share of all questions, 0 to 1.
        limit: maximum number of open questions; None for no limit.
        annotators: the people at the page; empty for other gatherers.
        sees_films: whether it gets the films of fragments before questions about them.
        serve: restarts the page if people can't reach it.
    """

    def __init__(
        self,
        actor: Actor[Any],
        name: str,
        *,
        share: float,
        limit: int | None,
        annotators: tuple[str, ...] = (),
        sees_films: bool = False,
        serve: Callable[[], Awaitable[None]] = _nothing,
    ):
        self.actor, self.name, self.annotators, self.share, self.limit = actor, name, annotators, share, limit
        self.sees_films = sees_films
        self.seconds = 0.0
        """Seconds from request to stored answer, for the newest labels."""
        self.failed_commits = 0
        self.asked = 0
        """Total number of questions so far."""
        self.lost_questions = 0
        """Number of questions lost with a node and replaced by new ones."""
        self.last: int | None = None
        """Number of the last event that it stored, if it reports that."""
        self.pages: int | None = None
        """Number of open labelling pages; None without people."""
        self.deserted = False
        """Whether all annotators have left."""
        self._serve = serve
        self.refer: Callable[[Pairs], Awaitable[None]] | None = None
        """Asks people about pairs that the gatherer refers to them."""
        self.pairs: dict[int, Ref[Pairs]] = {}
        """References of the pairs with open questions, by batch number."""
        self._open: dict[int, int] = {}
        self._asked_at: dict[int, float] = {}
        self.changes = 0
        """Number of changes that it has stored, since it was last restarted."""

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        return sum(self._open.values())

    def show(self, films: Ref[tuple[Film, ...]]) -> Ref[None]:
        """Send films. Return a reference that is ready once they are there."""
        return self.actor.call(GathererActor.show, passed(films))

    async def ask(self, chosen: ChosenPairs) -> None:
        """Send a query batch.

        Raises:
            OSError: the pairs' fragments could not be stored.
        """
        number = chosen.number
        try:
            await self.actor.call(GathererActor.ask, number, passed(chosen.pairs))
        except LOST:
            self.lost_questions += chosen.count
            return
        self.asked += chosen.count
        self.pairs[number], self._open[number], self._asked_at[number] = chosen.pairs, chosen.count, time.monotonic()

    async def listen(self, read: Callable[[], Awaitable[None]] = _nothing) -> bool:
        """Wait briefly for news from the gatherer and process it. Sends open pairs again to a restarted gatherer.

        Args:
            read: awaited after something was stored, before the questions count as closed: an answer may briefly count twice, but
                must never be missing, or another question would be asked in its place.

        Returns:
            Whether something was stored.
        """
        progress = await self.actor.call(GathererActor.wait, list(self.pairs), self.changes)
        if progress.changes != self.changes:
            await read()
        for line in progress.lines:
            logger.warning("%s", line)
        if not progress.serving:
            await self._serve()
        if self.refer is not None:
            for pairs in progress.referred:  # before the questions count as closed, too
                await self.refer(pairs)
        for number in progress.unknown:
            try:
                await self.actor.call(GathererActor.ask, number, passed(self.pairs[number]))
            except LOST:
                self.lost_questions += self._forget(number)
        for number, left in progress.open.items():
            if left < self._open[number]:
                self.seconds = time.monotonic() - self._asked_at[number]
            self._open[number] = left
            if not left:
                self._forget(number)
        # A restarted gatherer counts from 0 again, and may have stored something without reporting it.
        stored = progress.changes != self.changes or bool(progress.unknown)
        self.changes = progress.changes
        self.last, self.failed_commits, self.pages = progress.last, progress.failed, progress.pages
        if progress.deserted and not self.deserted:
            logger.warning(DESERTED)
        self.deserted = progress.deserted
        return stored

    def _forget(self, number: int) -> int:
        del self.pairs[number], self._asked_at[number]
        return self._open.pop(number)

    async def ask_again(self, batches: list[dict[str, Any]], put: Callable[[Pairs], Ref[Pairs]]) -> None:
        """Send the pairs from `as_arrays` again. The store recognises answers that exist already; they count once."""
        for batch in batches:
            plain = dict(batch["pairs"])
            pairs = Pairs(**plain | {"left": Fragments(**plain["left"]), "right": Fragments(**plain["right"])})
            await self.ask(ChosenPairs(batch["number"], put(pairs), len(pairs)))


async def as_arrays(open_pairs: dict[int, Ref[Pairs]]) -> list[dict[str, Any]]:
    """Convert `OpenQuestions.pairs` to plain arrays and numbers for a checkpoint. Skips lost pairs, which new ones replace."""
    batches = []
    for number, reference in open_pairs.items():
        try:
            pairs = await reference
        except LOST:
            continue
        plain = vars(pairs) | {"left": vars(pairs.left), "right": vars(pairs.right)}
        batches.append({"number": number, "pairs": plain})
    return batches
