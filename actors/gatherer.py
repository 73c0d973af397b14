"""GathererActor: runs a gatherer and tells the ring how many of its questions are open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import cause
from rlhf_ray.queries.gatherers import Commit, Gatherer, make_gatherer
from rlhf_ray.settings import PreferenceSettings

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds after which `wait` returns though nothing has happened."""

COMMIT_AGAIN_AFTER = 5.0
"""Seconds between two attempts to store answers that the store could not write."""


@dataclass(frozen=True)
class GathererProgress:
    """What has happened at a gatherer.

    Attributes:
        changes: how often something was stored since it was started.
        open: of each asking that was named, how many of its questions have no answer yet.
        unknown: askings that it does not know: it was restarted since.
        last: the number of the last event that it stored; None where it does not tell.
        failed: attempts to store that failed, since it was started.
        serving: whether people can reach it.
    """

    changes: int
    open: dict[int, int]
    unknown: tuple[int, ...] = ()
    last: int | None = None
    failed: int = 0
    serving: bool = True


@dataclass(frozen=True)
class MakeGatherer:
    """Makes the gatherer that the settings name. Here, so that the gatherer's process imports nothing of the ring's."""

    settings: PreferenceSettings
    seed: int

    def __call__(self, commit: Commit) -> Gatherer:
        """The gatherer, which has its answers stored by ``commit``."""
        return make_gatherer(commit, self.settings, self.seed)


class GathererActor:
    """A gatherer, with a thread to ask in and a store to commit to. Askings are answered one after the other.

    Args:
        make: makes the gatherer, given what stores its answers.
        store: finds the preference store's actor.
        get: waits for what a call gives.
    """

    def __init__(self, make: Callable[[Commit], Gatherer], store: Callable[[], Any], get: Callable[[Any], Any]):
        self._gatherer = make(self._commit)
        self._find_store, self._get = store, get
        self._store: Any = None
        self._thread = ThreadPoolExecutor(1, "gatherer")
        self._left: dict[int, set[str]] = {}
        """Of each asking, the pairs that have no answer yet."""
        self._error: BaseException | None = None
        self._changes = self._failed = 0
        self._last: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    async def ask(self, number: int, pairs: Pairs) -> None:
        """Have pairs answered. Asking ``number`` again changes nothing."""
        if number in self._left:
            return
        self._loop = asyncio.get_running_loop()
        self._left[number] = set(pairs.ids)
        self._loop.run_in_executor(self._thread, self._answer, number, pairs)

    async def wait(self, numbers: Sequence[int], changes: int) -> GathererProgress:
        """What has happened since ``changes``; waits a little for something to happen.

        Args:
            numbers: of the askings to tell about.
            changes: `GathererProgress.changes` of the last call.

        Raises:
            Exception: whatever the gatherer raised.
        """
        if self._changes == changes and self._error is None and all(number in self._left for number in numbers):
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), PATIENCE)
        if self._error is not None:
            raise self._error
        return GathererProgress(
            self._changes,
            {number: len(self._left[number]) for number in numbers if number in self._left},
            tuple(number for number in numbers if number not in self._left),
            self._last,
            self._failed,
        )

    # In the thread.

    def _answer(self, number: int, pairs: Pairs) -> None:
        try:
            self._gatherer.ask(number, pairs)
            if not self._changes and not self._get(self._find_store().tally.remote()).held:
                raise SettingError(
                    f"preferences.gatherer: {type(self._gatherer).__name__} returned from the first {len(pairs)} pairs without an "
                    "answer. `ask` has to hand answers to `commit`, and returns when there are no more to wait for."
                )
        except BaseException as error:
            self._error = error
        else:
            self._left[number].clear()  # what has no answer will have none
        self._wake()

    def _commit(self, answers: Comparisons) -> None:
        if self._store is None:
            self._store = self._find_store()
        names = np.array(answers.annotators or (type(self._gatherer).__name__,) * len(answers))
        last = 0
        while True:
            try:
                for name in dict.fromkeys(names.tolist()):
                    of = answers[names == name]
                    self._get(self._store.commit.remote(of, annotator=name))
                    last = max(last, self._get(self._store.last_answer.remote(of.pairs.ids, name)))
                break
            except OSError as error:  # a full disk, say: answers are worth waiting for
                self._failed += 1
                self._wake()
                logger.error("Could not store answers; trying again in %.0f s: %s", COMMIT_AGAIN_AFTER, cause(error))
                time.sleep(COMMIT_AGAIN_AFTER)
        self._last = max(last, self._last or 0)
        for left in self._left.values():
            left.difference_update(answers.pairs.ids)
        self._changes += 1
        self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._changed.set)
