"""FirstClips: the first clips that people are asked about, made in parts: the first pair needs two of them, not all."""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rlhf_ray.settings import ResolvedFragments

FIRST_FILMS = 36
"""Clips that are filmed before training, about. Few, since drawing them costs most; a first pair needs two."""

CLIPS_PER_PART = 2
"""Clips of one part: a pair."""


@dataclass(frozen=True)
class Part:
    """What one call of a collector makes.

    Attributes:
        number: from 1 on; decides everything random.
        env_steps: to take.
        clips: to make, about.
        film: whether they are filmed; else observations are images, which are shown as they are.
        episode: whether an episode is filmed too.
    """

    number: int
    env_steps: int
    clips: int
    film: bool
    episode: bool = False


def parts(env_steps: int, clips: int, rollouts: int, fragments: ResolvedFragments, *, images: bool) -> list[Part]:
    """The parts that the first ``env_steps`` steps are taken in, exactly. The episode that people see comes last.

    Args:
        env_steps: in all.
        clips: to film in all, about, where observations are no images.
        rollouts: stretches that the steps are shared by where they are.
        fragments: the settings.
        images: whether observations are images.
    """
    last = min(env_steps // 2, fragments.filmed_env_steps)
    steps = env_steps - last
    if images:
        count = max(1, min(rollouts, steps // (2 * fragments.length)))
        each = max(2, fragments.pool // count)
    else:
        count = max(1, min(clips // CLIPS_PER_PART - 1, steps // (CLIPS_PER_PART * (fragments.length + 1))))
        each = CLIPS_PER_PART
    ends = [round(steps * i / count) for i in range(count + 1)]
    made = [Part(i + 1, ends[i + 1] - ends[i], each, not images) for i in range(count)]
    return [*made, Part(count + 1, last, 0 if images else CLIPS_PER_PART, True, episode=True)]


class FirstClips:
    """Hands out the parts, and counts what came of them.

    Args:
        parts: all of them.
        make: has a collector make a part and hand its clips over; how many fragments are in the pool then.
    """

    def __init__(self, parts: list[Part], make: Callable[[Part, Any], Awaitable[int]]):
        self.total = sum(part.clips for part in parts)
        """Clips in all, about."""
        self.env_steps = 0
        """Steps of the parts that were made."""
        self.made = 0
        """Clips so far."""
        self._left, self._count = deque(parts), len(parts)
        self._done = 0
        self._make = make
        self._busy: list[Any] = []

    @property
    def share(self) -> float:
        """The share of the clips that is there, 0 to 1."""
        return 1.0 if self._done == self._count else min(1.0, self.made / max(1, self.total))

    @property
    def progress(self) -> str:
        """In words, what is being made."""
        return f"clip {min(self.made + 1, self.total)} of {self.total}"

    async def gather(
        self, collector: Any, make_helpers: Callable[[int], list[Any]], stop: Callable[[Any], None]
    ) -> None:
        """Make all parts.

        Args:
            collector: makes them; the first one alone, because the first pair is what people wait for.
            make_helpers: makes other collectors, at most so many, for cores that have nothing else to do.
            stop: ends a helper.
        """
        await self._one(collector)
        helpers = make_helpers(len(self._left) // 2) if self._left else []
        helping = [asyncio.ensure_future(self._help(helper)) for helper in helpers]
        try:
            while self._left:
                await self._one(collector)
            # One that takes long to start holds up no part, and has none.
            await asyncio.gather(*(task for task, helper in zip(helping, helpers, strict=True) if helper in self._busy))
        finally:
            for task, helper in zip(helping, helpers, strict=True):
                task.cancel()
                stop(helper)

    async def _help(self, helper: Any) -> None:
        await helper.__ray_ready__.remote()
        while self._left:
            self._busy.append(helper)
            await self._one(helper)
            self._busy.remove(helper)

    async def _one(self, collector: Any) -> None:
        part = self._left.popleft()
        self.made = max(self.made, await self._make(part, collector))
        self._done += 1
        self.env_steps += part.env_steps


def questions(wanted: int, share: float, made: bool) -> int:
    """How many of ``wanted`` questions to ask by now: about each clip there is as many as about each that is to come.

    Args:
        wanted: in all.
        share: of the clips that are there.
        made: whether a pair can be made of them.
    """
    return min(wanted, max(1, math.floor(wanted * share))) if made else 0


def free_cores(available: float) -> int:
    """Cores of this machine that are free besides the one that a collector has.

    Args:
        available: CPUs that Ray has left.
    """
    return max(0, min(int(available), len(os.sched_getaffinity(0)) - 1))
