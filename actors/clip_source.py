"""Clip sources: where the ring's fragments come from besides the agent's own rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_ray.actors.askings import LOST
from rlhf_ray.actors.rollout_collector import PolicyFactory as PolicyFactory
from rlhf_ray.data.errors import LostClipsError, SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.queries.pool import PoolReport

if TYPE_CHECKING:
    from rlhf_ray.actors.ring import Members, Moment

SAY_EVERY = 5.0
"""Seconds between two words on how many of the first clips are made, at least."""

MORE_CLIPS = 1_000_000
"""Number of the first gathering of more first clips, where the collector draws by numbers: above those of all rounds."""

MOST_FIRST_STEPS = 0.3
"""Share of all environment steps that the first clips take at most, with all that is gathered because answers were ties."""


class ClipSource(Protocol):
    """Makes clips and hands them to the pool."""

    env_steps: int
    """Environment steps taken, those of clips that are under way included."""
    share: float
    """Of the first clips, those that are there, 0 to 1."""
    say: Callable[[str], None]
    """Is told how far the first clips are."""

    async def first(self, env_steps: int, made: Callable[[], None]) -> None:
        """Make the first clips with ``env_steps`` random actions; ``made`` is told when there are some more."""
        ...

    def room_for_more(self) -> bool:
        """Whether more first clips can be gathered."""
        ...

    async def more(self, gathering: int) -> None:
        """Gather more first clips, which take the place of those there are."""
        ...

    def offer(self, moment: Moment, round_number: int, *, wait: bool) -> None:
        """A labelling round is due: note what clips of the newest policy to make, where they are wanted and there is room.

        Args:
            moment: how far the training is.
            round_number: which round.
            wait: whether the round is going to wait for them.
        """
        ...

    def waiting(self) -> bool:
        """Whether there is something for `make` to do."""
        ...

    async def make(self) -> int:
        """Make what was noted; environment steps that it took."""
        ...

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """Look whether what is in the pool after ``env_steps`` of the training will do, and give the report back."""
        ...

    def to_come(self) -> bool:
        """Before the first fit: whether there will be more first clips by themselves."""
        ...

    def metrics(self) -> dict[str, float]:
        """What is to be known of it now."""
        ...

    def close(self) -> None:
        """End its actors."""
        ...


class Collecting:
    """Random clips first, then exploratory ones of the agent's policy, where the settings ask for them.

    Args:
        members: the ring's other actors.
        collector: a `RolloutCollector`.
        rollouts: stretches that its steps are shared by.
        more_env_steps: environment steps of each gathering of more first clips.
    """

    def __init__(self, members: Members, collector: Any, rollouts: int, more_env_steps: int):
        self.members, self.collector, self.rollouts = members, collector, rollouts
        self.more_env_steps = more_env_steps
        self.fragments = members.settings.fragments
        self.env_steps = 0
        self.share = 0.0
        self.say: Callable[[str], None] = lambda what: None
        """Is told how far the first clips are."""
        self.dropped = 0
        """Explorations that fell due while an earlier one was under way."""
        self._exploration: tuple[int, int, PolicyFactory] | None = None
        self._said_at = time.monotonic()

    async def first(self, env_steps: int, made: Callable[[], None]) -> None:
        """See `ClipSource.first`.

        Raises:
            SettingError: they show that the settings do not fit the environment.
        """
        self.env_steps += env_steps
        report = await self._collect(env_steps, 0, RANDOM_POLICY, None)
        self._check_first(report)
        self.share = 1.0
        made()

    def room_for_more(self) -> bool:
        """See `ClipSource.room_for_more`."""
        most = MOST_FIRST_STEPS * self.members.settings.total_env_steps
        return self.env_steps + self.more_env_steps <= most

    async def more(self, gathering: int) -> None:
        """See `ClipSource.more`."""
        self.env_steps += self.more_env_steps
        await self._collect(self.more_env_steps, MORE_CLIPS + gathering, RANDOM_POLICY, None)

    def offer(self, moment: Moment, round_number: int, *, wait: bool) -> None:
        """See `ClipSource.offer`."""
        steps = self.fragments.exploration_env_steps
        if not steps or steps > moment.room:
            return
        if self._exploration is not None:
            self.dropped += 1
            return
        self._exploration = (round_number, moment.iteration, moment.policy())
        self.env_steps += steps

    def waiting(self) -> bool:
        """See `ClipSource.waiting`."""
        return self._exploration is not None

    async def make(self) -> int:
        """See `ClipSource.make`."""
        assert self._exploration is not None
        try:
            await self._collect(self.fragments.exploration_env_steps, *self._exploration)
        finally:
            self._exploration = None
        return self.fragments.exploration_env_steps

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """See `ClipSource.check`."""
        return report

    def to_come(self) -> bool:
        """See `ClipSource.to_come`."""
        return False

    def metrics(self) -> dict[str, float]:
        """See `ClipSource.metrics`."""
        return {"explorations_dropped": float(self.dropped)}

    def close(self) -> None:
        """See `ClipSource.close`."""
        self.members.executor.stop(self.collector)

    async def _collect(
        self, env_steps: int, number: int, policy_version: int, make_policy: PolicyFactory | None
    ) -> PoolReport | None:
        collect = self.collector.collect.options(num_returns=2)
        done, clips = collect.remote(env_steps, self.rollouts, number, policy_version, make_policy)
        await done
        return await self._hand_over(clips)

    async def _hand_over(self, clips: Any) -> PoolReport | None:
        """Have the pool take ``clips``; what is in it then, None where the clips were lost with the node that held them.

        Raises:
            LostClipsError: they were lost, and the ring is the synchronous one.
        """
        try:
            report: PoolReport = await self.members.pool.add.remote(clips)
        except LOST as error:
            if self.members.settings.preferences.mode == "synchronous":
                raise LostClipsError.because("the node that held them is gone") from error
            return None
        return self.members.check(report)

    def _check_first(self, report: PoolReport | None) -> None:
        """Check that the first clips can be compared."""
        if report is not None and report.fragments < 2:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, and in {self.env_steps} steps of random actions "
                f"{report.too_short} stretches of episodes were shorter than that (episodes had "
                f"{list(report.episode_lengths) or 'no end'} steps): shorten fragments.length."
            )
