"""Filming: the fragment source if people or a gatherer see films, which go to them from the collector, by fragment id."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlhf_ray.actors.first_fragments import FIRST_FILMS, FirstFragments, Part, first_films, parts
from rlhf_ray.actors.fragment_source import MORE_FRAGMENTS, Collecting
from rlhf_ray.actors.handles import Actor, Ref
from rlhf_ray.actors.listener import Listener
from rlhf_ray.actors.rollout_collector import PolicyFactory, RolloutCollector
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.data.images import is_image
from rlhf_ray.queries.pool import CutFragments, FragmentPool

if TYPE_CHECKING:
    from rlhf_ray.actors.members import Members
    from rlhf_ray.actors.ring import Moment, Pretrained

REPORT_EVERY = 5.0
"""Minimum interval in seconds between progress messages about the initial fragments."""

FEWEST_FILMS = 6
"""Minimum number of fragments filmed of each later policy."""

LAST_EPISODE = 2 * MORE_FRAGMENTS
"""Random stream number of the episode that is filmed at the end."""

LAST_WITHIN = 60.0
"""Seconds for filming it."""

EPISODE_EVERY = 10.0
"""Minimum seconds between two films of a whole episode: rendering them takes time from the training."""


class Filming(Collecting):
    """Makes and films initial fragments from random actions in parts, then fragments of the newest policy when questions need them.

    Args:
        members, collector, rollouts, more_env_steps: see `Collecting`.
        make_helpers: starts additional collectors on idle cores.
        rounds: number of labelling rounds after the first.
        listener: told about the progress of the initial fragments.
    """

    def __init__(
        self,
        members: Members,
        collector: Actor[RolloutCollector],
        rollouts: int,
        more_env_steps: int,
        make_helpers: Callable[[int], list[Actor[RolloutCollector]]],
        rounds: int,
        listener: Listener,
    ):
        super().__init__(members, collector, rollouts, more_env_steps)
        self._make_helpers, self._rounds = make_helpers, rounds
        self._listener, self._reported_at = listener, time.monotonic()
        self.images = is_image(members.settings.observation_space)
        self.making: FirstFragments | None = None
        """The initial fragments while they are being made; else None."""
        self._given: deque[Ref[CutFragments]] = deque()
        """References of the initial fragments, in case the pool restarts meanwhile."""
        self._filming: tuple[int, int, PolicyFactory, int] | None = None
        self._filmed_at = -math.inf
        """Time (`time.monotonic`) of the last film of an episode."""
        if members.people is not None:
            members.people.film = self.show_last
        self._asked_at_film = 0
        """`_asked` when fragments were last filmed."""

    @property
    def films_per_round(self) -> int:
        """Number of fragments filmed before each later round: enough to use each in one or two pairs, since filming is costly."""
        preferences = self.members.settings.preferences
        share = sum(questions.share for questions in self.members.viewed)
        wanted = math.ceil(
            1.5 * share * (preferences.comparisons - preferences.first_comparisons) / max(1, self._rounds)
        )
        return max(FEWEST_FILMS, min(wanted, self.fragments.filmed_env_steps // (self.fragments.length + 1)))

    @property
    def _asked(self) -> int:
        """Number of questions so far to those who see films."""
        return sum(questions.asked for questions in self.members.viewed)

    @property
    def _films_an_episode(self) -> bool:
        """Whether people are to see a newer episode."""
        return self.members.people is not None and time.monotonic() - self._filmed_at >= EPISODE_EVERY

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """See `FragmentSource.first`."""
        self._pretrained = pretrained
        self.env_steps += env_steps

        async def make(part: Part, collector: Actor[RolloutCollector]) -> int:
            count = await self._make_part(part, collector)
            made()
            return count

        count = first_films(self.members.settings.preferences.first_comparisons, self.fragments.pool)
        planned = parts(env_steps, count, self.rollouts, self.fragments, images=self.images)
        self.making = FirstFragments(planned, make)
        await self.making.gather(self.collector, self._make_helpers, self.members.executor.stop)
        self._check_first(await self.members.pool.call(FragmentPool.report))
        self.making, self.share = None, 1.0
        self._given.clear()
        made()

    async def _make_part(self, part: Part, collector: Actor[RolloutCollector]) -> int:
        assert self.making is not None
        if part.film:
            pretrained = self._pretrained if part.number % 2 == 0 else None
            version, policy = pretrained or (RANDOM_POLICY, None)
            count, taken = max(1, part.fragments), self.making.env_steps
            made = await self._film(
                collector, part.env_steps, count, 0, taken, version, policy, part.episode, part.number
            )
        else:
            arguments = (part.env_steps, 1, 0)
            done, made = collector.split(2, RolloutCollector.collect, *arguments, part=part.number, most=part.fragments)
            await done
        self._given.append(made)
        report = await self._hand_over(made)
        if report is not None and report.fragments < self.making.made:  # the pool was restarted and lost the others
            for earlier in self._given:
                report = await self._hand_over(earlier)
        fragments = 0 if report is None else report.fragments
        self.share = max(self.share, min(0.999, fragments / max(1, self.making.total)))
        if time.monotonic() - self._reported_at >= REPORT_EVERY:
            self._reported_at = time.monotonic()
            self._listener.on_stage(f"the initial fragments: {self.making.progress}")
        return fragments

    async def more(self, gathering: int) -> None:
        """See `FragmentSource.more`."""
        steps, number = self.more_env_steps, MORE_FRAGMENTS + gathering
        self.env_steps += steps
        # Images are shown as they are, and cut from all steps; then only an episode is filmed.
        filmed = min(steps // 2, self.fragments.film_env_steps) if self.images else steps
        count = min(FIRST_FILMS, 2 * self.members.settings.preferences.first_comparisons)
        await self._hand_over(await self._film(self.collector, filmed, count, number, 0, RANDOM_POLICY, None, True))
        if filmed < steps:
            await self._collect(steps - filmed, number, RANDOM_POLICY, None)

    def offer(self, moment: Moment, round_number: int, *, wait: bool) -> None:
        """See `FragmentSource.offer`.

        Films are made if questions were asked about some of the last ones, and for people regularly of an episode.
        """
        super().offer(moment, round_number, wait=wait)
        steps = self.fragments.filmed_env_steps
        if steps > moment.room or self._filming is not None:
            return
        episode, asked = self._films_an_episode, self._asked
        fragments = not self.images and asked - self._asked_at_film >= FEWEST_FILMS // 2
        if wait or episode or fragments:
            self._filming = (round_number, moment.iteration, moment.policy(), moment.env_steps)
            self._asked_at_film = asked
            self.env_steps += steps

    def waiting(self) -> bool:
        """See `FragmentSource.waiting`."""
        return self._filming is not None or super().waiting()

    async def make(self) -> int:
        """See `FragmentSource.make`."""
        steps = 0
        if super().waiting():
            steps += await super().make()
        if self._filming is not None:
            try:
                number, version, policy, taken = self._filming
                episode = self._films_an_episode
                steps_filmed, count = self.fragments.filmed_env_steps, self.films_per_round
                made = await self._film(self.collector, steps_filmed, count, number, taken, version, policy, episode)
                await self._hand_over(made)
            finally:
                self._filming = None
            steps += self.fragments.filmed_env_steps
        return steps

    def show_last(self, policy: PolicyFactory, env_steps: int) -> None:
        """Show people an episode of the trained ``policy``. Waits for it; its steps count to no budget."""
        arguments = (self.fragments.filmed_env_steps, 1, LAST_EPISODE, env_steps, 0, policy, True)
        *_, of_episode = self.collector.split(4, RolloutCollector.film, *arguments)
        with contextlib.suppress(Exception):  # the training is complete without it
            self.members.executor.get(of_episode, LAST_WITHIN)
            self.members.show_episode(of_episode)

    async def _film(
        self,
        collector: Actor[RolloutCollector],
        env_steps: int,
        count: int,
        number: int,
        taken: int,
        version: int,
        policy: PolicyFactory | None,
        episode: bool,
        part: int = 0,
    ) -> Ref[CutFragments]:
        """Film with `RolloutCollector.film` and send the films to those who see them. Return the reference of the fragments."""
        arguments = (env_steps, count, number, taken, version, policy, episode, part)
        done, fragments, films, of_episode = collector.split(4, RolloutCollector.film, *arguments)
        await done
        await self.members.show(films)
        if episode:
            self._filmed_at = time.monotonic()
            self.members.show_episode(of_episode)
        return fragments
