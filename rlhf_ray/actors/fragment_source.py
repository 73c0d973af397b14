"""Fragment sources: where the ring's fragments come from besides the agent's own rollouts."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_ray.actors.executor import Actor, Ref, passed
from rlhf_ray.actors.gatherer import LOST
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.actors.rollout_collector import PolicyFactory, RolloutCollector
from rlhf_ray.data.errors import LostFragmentsError, SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.data.images import is_image
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport
from rlhf_ray.settings import ResolvedFragments

if TYPE_CHECKING:
    from rlhf_ray.actors.ring import Pretrained, Progress
    from rlhf_ray.actors.ring_actors import RingActors

MORE_FRAGMENTS = 1_000_000
"""Random stream number of the first extra collection of initial fragments: above the numbers of all rounds."""

MOST_FIRST_STEPS = 0.3
"""Maximum share of the step budget for initial fragments, including extra collections because of ties."""

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


FIRST_FILMS = 36
"""Approximate least number of fragments filmed before training. Small, since filming is costly."""

FRAGMENTS_PER_PART = 2
"""Fragments per part: one pair."""


class FragmentSource:
    """Makes fragments and passes them to the pool. What a source doesn't do by itself, does nothing."""

    env_steps: int
    """Environment steps taken, including those of fragments still being made."""
    share: float
    """Share of the initial fragments that are made, 0 to 1."""

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """Make the initial fragments in ``env_steps`` steps. Calls ``made`` whenever there are new ones.

        With a ``pretrained`` policy, half of them show it; otherwise all show random actions.
        """

    def room_for_more(self) -> bool:
        """Return whether the step budget allows more initial fragments."""
        return False

    async def more(self, gathering: int) -> None:
        """Replace the initial fragments by newly collected ones."""

    def offer(self, progress: Progress, round_number: int, *, wait: bool) -> None:
        """Note that a labelling round is due, and schedule fragments of the newest policy if they are wanted and there is room."""

    def waiting(self) -> bool:
        """Return whether `make` has work to do."""
        return False

    async def make(self) -> int:
        """Make the scheduled fragments. Return the environment steps taken."""
        return 0

    def film_last(self, policy: PolicyFactory, env_steps: int) -> None:
        """Show people, where they see films, an episode of the ``policy`` that was trained for ``env_steps`` steps."""

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """Check the pool after ``env_steps`` of training, and return the report."""
        return report

    def to_come(self) -> bool:
        """Before the first fit: return whether more initial fragments will arrive."""
        return False

    def metrics(self) -> dict[str, float]:
        """Return the current metrics."""
        return {}

    def close(self) -> None:
        """Stop its actors."""


class Collecting(FragmentSource):
    """Makes initial fragments from random actions, then exploratory ones from the agent's policy if the settings ask for them.

    Args:
        rollouts: number of rollouts the step budget is split into.
        more_env_steps: environment steps of each extra collection of initial fragments.
    """

    def __init__(self, actors: RingActors, collector: Actor[RolloutCollector], rollouts: int, more_env_steps: int):
        self.actors, self.collector, self.rollouts = actors, collector, rollouts
        self.more_env_steps = more_env_steps
        self.fragments = actors.settings.fragments
        self.env_steps = 0
        self.share = 0.0
        self.dropped = 0
        """Explorations skipped because an earlier one was still running."""
        self._exploration: tuple[int, int, PolicyFactory] | None = None
        self._pretrained: Pretrained | None = None

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """See `FragmentSource.first`.

        Raises:
            SettingError: the fragments show that the settings don't fit the environment.
        """
        self._pretrained = pretrained
        self.env_steps += env_steps
        report = await self._collect_first(env_steps, 0)
        self._check_first(report)
        self.share = 1.0
        made()

    def room_for_more(self) -> bool:
        most = MOST_FIRST_STEPS * self.actors.settings.total_env_steps
        return self.env_steps + self.more_env_steps <= most

    async def more(self, gathering: int) -> None:
        self.env_steps += self.more_env_steps
        await self._collect_first(self.more_env_steps, MORE_FRAGMENTS + gathering)

    def offer(self, progress: Progress, round_number: int, *, wait: bool) -> None:
        steps = self.fragments.exploration_env_steps
        if not steps or steps > progress.room:
            return
        if self._exploration is not None:
            self.dropped += 1
            return
        self._exploration = (round_number, progress.iteration, progress.policy())
        self.env_steps += steps

    def waiting(self) -> bool:
        return self._exploration is not None

    async def make(self) -> int:
        assert self._exploration is not None
        try:
            await self._collect(self.fragments.exploration_env_steps, *self._exploration)
        finally:
            self._exploration = None
        return self.fragments.exploration_env_steps

    def metrics(self) -> dict[str, float]:
        return {"explorations_dropped": float(self.dropped)}

    def close(self) -> None:
        self.actors.executor.stop(self.collector)

    async def _collect_first(self, env_steps: int, number: int) -> PoolReport | None:
        """Collect fragments of random actions, and in equal parts of the pretrained policy if there is one."""
        version, policy = self._pretrained or (RANDOM_POLICY, None)
        return await self._collect(env_steps, number, version, policy, mixed=True)

    async def _collect(
        self,
        env_steps: int,
        number: int,
        policy_version: int,
        make_policy: PolicyFactory | None,
        mixed: bool = False,
    ) -> PoolReport | None:
        arguments = (env_steps, self.rollouts, number, policy_version, make_policy)
        done, fragments = self.collector.split(2, RolloutCollector.collect, *arguments, mixed=mixed)
        await done
        return await self._hand_over(fragments)

    async def _hand_over(self, fragments: Ref[CutFragments]) -> PoolReport | None:
        """Add ``fragments`` to the pool. Return its report, or None if they were lost with their node.

        Raises:
            LostFragmentsError: they were lost in the synchronous mode.
        """
        try:
            report = await self.actors.pool.call(FragmentPool.add, passed(fragments))
        except LOST as error:
            if self.actors.settings.preferences.mode == "synchronous":
                raise LostFragmentsError.because("the node that held them is gone") from error
            return None
        return self.actors.check(report)

    def _check_first(self, report: PoolReport | None) -> None:
        """Check that there are at least two initial fragments to compare."""
        if report is not None and report.fragments < 2:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, but in {self.env_steps} steps of random actions "
                f"{report.too_short} episodes were shorter than that (episodes had "
                f"{list(report.episode_lengths) or 'no end'} steps): reduce fragments.length."
            )


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


class Filming(Collecting):
    """For people, or a gatherer, who see films: these go to them from the collector, by fragment id.

    Makes and films initial fragments from random actions in parts, then fragments of the newest policy when questions need them.

    Args:
        rounds: number of labelling rounds after the first.
    """

    def __init__(
        self,
        actors: RingActors,
        collector: Actor[RolloutCollector],
        rollouts: int,
        more_env_steps: int,
        rounds: int,
        callbacks: RingCallbacks,
    ):
        super().__init__(actors, collector, rollouts, more_env_steps)
        self._rounds = rounds
        self._callbacks, self._reported_at = callbacks, time.monotonic()
        self.images = is_image(actors.settings.observation_space)
        self._filming: tuple[int, int, PolicyFactory, int] | None = None
        self._filmed_at = -math.inf
        """Time (`time.monotonic`) of the last film of an episode."""
        self._asked_at_film = 0
        """`_asked` when fragments were last filmed."""

    @property
    def films_per_round(self) -> int:
        """Number of fragments filmed before each later round: enough to use each in one or two pairs, since filming is costly."""
        preferences = self.actors.settings.preferences
        share = sum(questions.share for questions in self.actors.viewed)
        wanted = math.ceil(
            1.5 * share * (preferences.comparisons - preferences.first_comparisons) / max(1, self._rounds)
        )
        return max(FEWEST_FILMS, min(wanted, self.fragments.filmed_env_steps // (self.fragments.length + 1)))

    @property
    def _asked(self) -> int:
        """Number of questions so far to those who see films."""
        return sum(questions.asked for questions in self.actors.viewed)

    @property
    def _films_an_episode(self) -> bool:
        """Whether people are to see a newer episode."""
        return self.actors.people is not None and time.monotonic() - self._filmed_at >= EPISODE_EVERY

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """People are asked about the first pair while others are being made."""
        self._pretrained = pretrained
        self.env_steps += env_steps
        count = first_films(self.actors.settings.preferences.first_comparisons, self.fragments.pool)
        planned = parts(env_steps, count, self.rollouts, self.fragments, images=self.images)
        total, stored, taken = max(1, sum(part.fragments for part in planned)), 0, 0
        given: list[Ref[CutFragments]] = []  # in case the pool restarts meanwhile
        for part in planned:
            given.append(await self._make_part(part, taken))
            report = await self._hand_over(given[-1])
            if report is not None and report.fragments < stored:  # the pool was restarted and lost the others
                for earlier in given:
                    report = await self._hand_over(earlier)
            stored = max(stored, 0 if report is None else report.fragments)
            taken += part.env_steps
            self.share = max(self.share, min(0.999, stored / total))
            if time.monotonic() - self._reported_at >= REPORT_EVERY:
                self._reported_at = time.monotonic()
                self._callbacks.on_stage(f"the initial fragments: fragment {min(stored + 1, total)} of {total}")
            made()
        self._check_first(await self.actors.pool.call(FragmentPool.report))
        self.share = 1.0
        made()

    async def _make_part(self, part: Part, taken: int) -> Ref[CutFragments]:
        if part.film:
            pretrained = self._pretrained if part.number % 2 == 0 else None
            version, policy = pretrained or (RANDOM_POLICY, None)
            count = max(1, part.fragments)
            return await self._film(part.env_steps, count, 0, taken, version, policy, part.episode, part.number)
        fragments: Ref[CutFragments]
        arguments = (part.env_steps, 1, 0)
        done, fragments = self.collector.split(
            2, RolloutCollector.collect, *arguments, part=part.number, most=part.fragments
        )
        await done
        return fragments

    async def more(self, gathering: int) -> None:
        steps, number = self.more_env_steps, MORE_FRAGMENTS + gathering
        self.env_steps += steps
        # Images are shown as they are, and cut from all steps; then only an episode is filmed.
        filmed = min(steps // 2, self.fragments.film_env_steps) if self.images else steps
        count = min(FIRST_FILMS, 2 * self.actors.settings.preferences.first_comparisons)
        await self._hand_over(await self._film(filmed, count, number, 0, RANDOM_POLICY, None, True))
        if filmed < steps:
            await self._collect(steps - filmed, number, RANDOM_POLICY, None)

    def offer(self, progress: Progress, round_number: int, *, wait: bool) -> None:
        """See `FragmentSource.offer`.

        Films are made if questions were asked about some of the last ones, and for people regularly of an episode.
        """
        super().offer(progress, round_number, wait=wait)
        steps = self.fragments.filmed_env_steps
        if steps > progress.room or self._filming is not None:
            return
        episode, asked = self._films_an_episode, self._asked
        fragments = not self.images and asked - self._asked_at_film >= FEWEST_FILMS // 2
        if wait or episode or fragments:
            self._filming = (round_number, progress.iteration, progress.policy(), progress.env_steps)
            self._asked_at_film = asked
            self.env_steps += steps

    def waiting(self) -> bool:
        return self._filming is not None or super().waiting()

    async def make(self) -> int:
        steps = 0
        if super().waiting():
            steps += await super().make()
        if self._filming is not None:
            try:
                number, version, policy, taken = self._filming
                episode = self._films_an_episode
                steps_filmed, count = self.fragments.filmed_env_steps, self.films_per_round
                made = await self._film(steps_filmed, count, number, taken, version, policy, episode)
                await self._hand_over(made)
            finally:
                self._filming = None
            steps += self.fragments.filmed_env_steps
        return steps

    def film_last(self, policy: PolicyFactory, env_steps: int) -> None:
        """Waits for the film; its steps count to no budget."""
        arguments = (self.fragments.filmed_env_steps, 1, LAST_EPISODE, env_steps, 0, policy, True)
        *_, episode = self.collector.split(4, RolloutCollector.film, *arguments)
        with contextlib.suppress(Exception):  # the training is complete without it
            self.actors.executor.get(episode, LAST_WITHIN)
            self.actors.show_episode(episode)

    async def _film(
        self,
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
        fragments: Ref[CutFragments]
        arguments = (env_steps, count, number, taken, version, policy, episode, part)
        done, fragments, films, of_episode = self.collector.split(4, RolloutCollector.film, *arguments)
        await done
        await self.actors.show(films)
        if episode:
            self._filmed_at = time.monotonic()
            self.actors.show_episode(of_episode)
        return fragments
