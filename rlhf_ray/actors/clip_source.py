"""Fragment sources: where the ring's fragments come from besides the agent's own rollouts."""

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
    from rlhf_ray.actors.ring import Members, Moment, Pretrained

SAY_EVERY = 5.0
"""Minimum interval in seconds between progress messages about the initial fragments."""

MORE_CLIPS = 1_000_000
"""Random stream number of the first extra collection of initial fragments: above the numbers of all rounds."""

MOST_FIRST_STEPS = 0.3
"""Maximum share of the step budget for initial fragments, including extra collections because of ties."""


class ClipSource(Protocol):
    """Makes fragments and passes them to the pool."""

    env_steps: int
    """Environment steps taken, including those of fragments still being made."""
    share: float
    """Share of the initial fragments that are made, 0 to 1."""
    say: Callable[[str], None]
    """Called with progress messages about the initial fragments."""
    pretrained: Pretrained | None
    """The policy that half of the initial fragments show; None: all show random actions."""

    async def first(self, env_steps: int, made: Callable[[], None]) -> None:
        """Make the initial fragments in ``env_steps`` steps. Calls ``made`` whenever there are new ones."""
        ...

    def room_for_more(self) -> bool:
        """Return whether the step budget allows more initial fragments."""
        ...

    async def more(self, gathering: int) -> None:
        """Replace the initial fragments by newly collected ones."""
        ...

    def offer(self, moment: Moment, round_number: int, *, wait: bool) -> None:
        """Note that a labelling round is due, and schedule fragments of the newest policy if they are wanted and there is room.

        Args:
            moment: the training's progress.
            round_number: number of the round.
            wait: whether the round will wait for the fragments.
        """
        ...

    def waiting(self) -> bool:
        """Return whether `make` has work to do."""
        ...

    async def make(self) -> int:
        """Make the scheduled fragments. Return the environment steps taken."""
        ...

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """Check the pool after ``env_steps`` of training, and return the report."""
        ...

    def to_come(self) -> bool:
        """Before the first fit: return whether more initial fragments will arrive."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the current metrics."""
        ...

    def close(self) -> None:
        """Stop its actors."""
        ...


class Collecting:
    """Makes initial fragments from random actions, then exploratory ones from the agent's policy if the settings ask for them.

    Args:
        members: the ring's other actors.
        collector: a `RolloutCollector`.
        rollouts: number of rollouts the step budget is split into.
        more_env_steps: environment steps of each extra collection of initial fragments.
    """

    def __init__(self, members: Members, collector: Any, rollouts: int, more_env_steps: int):
        self.members, self.collector, self.rollouts = members, collector, rollouts
        self.more_env_steps = more_env_steps
        self.fragments = members.settings.fragments
        self.env_steps = 0
        self.share = 0.0
        self.say: Callable[[str], None] = lambda what: None
        """Called with progress messages about the initial fragments."""
        self.pretrained: Pretrained | None = None
        self.dropped = 0
        """Explorations skipped because an earlier one was still running."""
        self._exploration: tuple[int, int, PolicyFactory] | None = None
        self._said_at = time.monotonic()

    async def first(self, env_steps: int, made: Callable[[], None]) -> None:
        """See `ClipSource.first`.

        Raises:
            SettingError: the fragments show that the settings don't fit the environment.
        """
        self.env_steps += env_steps
        report = await self._collect_first(env_steps, 0)
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
        await self._collect_first(self.more_env_steps, MORE_CLIPS + gathering)

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

    async def _collect_first(self, env_steps: int, number: int) -> PoolReport | None:
        """Collect fragments of random actions, and in equal parts of the pretrained policy if there is one."""
        version, policy = self.pretrained or (RANDOM_POLICY, None)
        return await self._collect(env_steps, number, version, policy, mixed=True)

    async def _collect(
        self,
        env_steps: int,
        number: int,
        policy_version: int,
        make_policy: PolicyFactory | None,
        mixed: bool = False,
    ) -> PoolReport | None:
        collect = self.collector.collect.options(num_returns=2)
        done, clips = collect.remote(env_steps, self.rollouts, number, policy_version, make_policy, mixed=mixed)
        await done
        return await self._hand_over(clips)

    async def _hand_over(self, clips: Any) -> PoolReport | None:
        """Add ``clips`` to the pool. Return its report, or None if they were lost with their node.

        Raises:
            LostClipsError: they were lost in the synchronous mode.
        """
        try:
            report: PoolReport = await self.members.pool.add.remote(clips)
        except LOST as error:
            if self.members.settings.preferences.mode == "synchronous":
                raise LostClipsError.because("the node that held them is gone") from error
            return None
        return self.members.check(report)

    def _check_first(self, report: PoolReport | None) -> None:
        """Check that there are at least two initial fragments to compare."""
        if report is not None and report.fragments < 2:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, but in {self.env_steps} steps of random actions "
                f"{report.too_short} trajectories were shorter than that (episodes had "
                f"{list(report.episode_lengths) or 'no end'} steps): reduce fragments.length."
            )
