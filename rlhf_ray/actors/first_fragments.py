"""FirstFragments: makes the initial fragments for people in parts: the first pair needs two of them, not all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rlhf_ray.actors.handles import Actor
from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.data.system import usable_cores
from rlhf_ray.settings import ResolvedFragments

Collector = Actor[RolloutCollector]

FIRST_FILMS = 36
"""Approximate least number of fragments filmed before training. Small, since filming is costly."""

FRAGMENTS_PER_PART = 2
"""Fragments per part: one pair."""


@dataclass(frozen=True)
class Part:
    """The work of one call of a collector.

    Attributes:
        number: from 1 on; seeds the random draws.
        env_steps: environment steps to take.
        fragments: approximate number of fragments to make.
        film: whether to film them; otherwise observations are images, which are shown as they are.
        episode: whether to film an episode too.
    """

    number: int
    env_steps: int
    fragments: int
    film: bool
    episode: bool = False


def parts(env_steps: int, count: int, rollouts: int, fragments: ResolvedFragments, *, images: bool) -> list[Part]:
    """Split the initial ``env_steps`` steps into parts. The last one includes the episode that people see.

    Args:
        env_steps: total number of steps.
        count: approximate total number of fragments to film, if observations are not images.
        rollouts: number of rollouts the steps are split into, if observations are images.
        fragments: fragment settings.
        images: whether observations are images.
    """
    last = min(env_steps // 2, fragments.filmed_env_steps)
    steps = env_steps - last
    if images:
        number = max(1, min(rollouts, steps // (2 * fragments.length)))
        in_part = max(2, fragments.pool // number)
    else:
        number = min(count // FRAGMENTS_PER_PART - 1, steps // (FRAGMENTS_PER_PART * (fragments.length + 1)))
        number, in_part = max(1, number), FRAGMENTS_PER_PART
    ends = [round(steps * i / number) for i in range(number + 1)]
    before = [Part(i + 1, ends[i + 1] - ends[i], in_part, not images) for i in range(number)]
    return [*before, Part(number + 1, last, 0 if images else FRAGMENTS_PER_PART, True, episode=True)]


def first_films(first_comparisons: int, pool: int) -> int:
    """Return about how many fragments to film before training: one for each first question, if the ``pool`` keeps so many.

    The more often the same fragments are compared, the less a reward learns from an answer.
    """
    return min(max(FIRST_FILMS, min(first_comparisons, pool)), 2 * first_comparisons)


class FirstFragments:
    """Distributes the parts to collectors and counts the results.

    Args:
        parts: all parts.
        make: has a collector make a part and adds its fragments to the pool; returns the pool's number of fragments.
    """

    def __init__(self, parts: list[Part], make: Callable[[Part, Collector], Awaitable[int]]):
        self.total = sum(part.fragments for part in parts)
        """Approximate total number of fragments."""
        self.env_steps = 0
        """Steps of finished parts."""
        self.made = 0
        """Number of fragments so far."""
        self._left, self._count = deque(parts), len(parts)
        self._done = 0
        self._make = make
        self._busy: list[Collector] = []

    @property
    def share(self) -> float:
        """Share of the fragments that are made, 0 to 1."""
        return 1.0 if self._done == self._count else min(1.0, self.made / max(1, self.total))

    @property
    def progress(self) -> str:
        """Description of the progress."""
        return f"fragment {min(self.made + 1, self.total)} of {self.total}"

    async def gather(
        self, collector: Collector, make_helpers: Callable[[int], list[Collector]], stop: Callable[[Collector], None]
    ) -> None:
        """Make all parts.

        Args:
            collector: makes parts; alone for the first one, since people wait for the first pair.
            make_helpers: starts up to the given number of additional collectors on idle cores.
            stop: stops a helper.
        """
        await self._one(collector)
        helpers = make_helpers(len(self._left) // 2) if self._left else []
        helping = [asyncio.ensure_future(self._help(helper)) for helper in helpers]
        try:
            while self._left:
                await self._one(collector)
            # Don't wait for helpers that are still starting: they hold no part.
            await asyncio.gather(*(task for task, helper in zip(helping, helpers, strict=True) if helper in self._busy))
        finally:
            for task, helper in zip(helping, helpers, strict=True):
                task.cancel()
                stop(helper)

    async def _help(self, helper: Collector) -> None:
        await helper.ready()
        while self._left:
            self._busy.append(helper)
            await self._one(helper)
            self._busy.remove(helper)

    async def _one(self, collector: Collector) -> None:
        part = self._left.popleft()
        self.made = max(self.made, await self._make(part, collector))
        self._done += 1
        self.env_steps += part.env_steps


def free_cores(available: float) -> int:
    """Return the number of idle cores on this machine, not counting the collector's.

    Args:
        available: CPUs that Ray has available.
    """
    return max(0, min(int(available), usable_cores() - 1))
