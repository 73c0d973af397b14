"""Fragment sources: where the ring's fragments come from besides the agent's own rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rlhf_ray.actors.executor import Actor, Ref, passed
from rlhf_ray.actors.gatherer import LOST
from rlhf_ray.actors.rollout_collector import PolicyFactory, RolloutCollector
from rlhf_ray.data.errors import LostFragmentsError, SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport

if TYPE_CHECKING:
    from rlhf_ray.actors.ring import Pretrained, Progress
    from rlhf_ray.actors.ring_actors import RingActors

MORE_FRAGMENTS = 1_000_000
"""Random stream number of the first extra collection of initial fragments: above the numbers of all rounds."""

MOST_FIRST_STEPS = 0.3
"""Maximum share of the step budget for initial fragments, including extra collections because of ties."""


class FragmentSource(Protocol):
    """Makes fragments and passes them to the pool."""

    env_steps: int
    """Environment steps taken, including those of fragments still being made."""
    share: float
    """Share of the initial fragments that are made, 0 to 1."""

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """Make the initial fragments in ``env_steps`` steps. Calls ``made`` whenever there are new ones.

        With a ``pretrained`` policy, half of them show it; otherwise all show random actions.
        """
        ...

    def room_for_more(self) -> bool:
        """Return whether the step budget allows more initial fragments."""
        ...

    async def more(self, gathering: int) -> None:
        """Replace the initial fragments by newly collected ones."""
        ...

    def offer(self, progress: Progress, round_number: int, *, wait: bool) -> None:
        """Note that a labelling round is due, and schedule fragments of the newest policy if they are wanted and there is room."""
        ...

    def waiting(self) -> bool:
        """Return whether `make` has work to do."""
        ...

    async def make(self) -> int:
        """Make the scheduled fragments. Return the environment steps taken."""
        ...

    def film_last(self, policy: PolicyFactory, env_steps: int) -> None:
        """Show people, where they see films, an episode of the ``policy`` that was trained for ``env_steps`` steps."""
        return

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
        return


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
                f"{report.too_short} trajectories were shorter than that (episodes had "
                f"{list(report.episode_lengths) or 'no end'} steps): reduce fragments.length."
            )
