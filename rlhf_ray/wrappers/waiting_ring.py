"""WaitingRing: the synchronous ring for training outside of this library, which waits in `step` for the labels that are due."""

from __future__ import annotations

from rlhf_ray.actors.listener import Listener
from rlhf_ray.actors.members import Members
from rlhf_ray.actors.ring import Learn, Moment, RoundReport, Stop, never
from rlhf_ray.actors.synchronous import SynchronousRing
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.store import Tally
from rlhf_ray.wrappers.given_fragments import GivenFragments


class WaitingRing(SynchronousRing):
    """Holds each round inside the call of `advance` in which it falls due; deterministic given the seed and the agent's fragments.

    Args:
        members: the ring's actors.
        schedule: when how many labels are due.
        source: the agent's fragments.
        listener: told when the first fit starts.
        asks: whether to ask questions; otherwise it fits to the labels in the store.
        fits: whether to fit the reward model; otherwise it only collects preferences.
    """

    def __init__(
        self,
        members: Members,
        schedule: LabelSchedule,
        source: GivenFragments,
        listener: Listener,
        *,
        asks: bool = True,
        fits: bool = True,
    ):
        super().__init__(members, schedule, source, listener, fits=fits)
        self.agents, self.asks = source, asks
        self._news: RoundReport | None = None

    def start(self) -> None:
        """Count the labels that the store holds."""
        tally = self._run(self._count())
        self.answered, self.skipped = tally.held, tally.skipped

    def advance(self, moment: Moment, stop: Stop = never, learn: Learn = lambda report: None) -> RoundReport | None:
        """See `Ring.advance`. Holds the first round once the initial fragments are there.

        Raises:
            SettingError: the fragments show that the settings don't fit the environment.
        """
        self.source.env_steps = moment.env_steps
        report = None
        if self.asks:
            self._run(self._check(moment.env_steps))
        if self.round_number < 0:
            made = not self.asks or self.agents.taken >= self.members.settings.fragments.initial_env_steps
            if not made or not self.collecting:
                return None
            report = self.begin(0, stop)
        return super().advance(moment, stop, learn) or report

    def wait_for_version(self) -> None:
        """Hold the first round unless it was held."""
        if self.round_number < 0:
            self._news = self.begin(0)

    def settle(self) -> tuple[int, int]:
        """Return the number of missing labels and the number of due ones: all of them were waited for."""
        used = self._skips.used(Tally(held=self.answered, skipped=self.skipped))
        return max(0, self.labels_due - used), self.labels_due

    @property
    def labels_due(self) -> int:
        """Total number of labels to request by now."""
        return self.schedule.due_in_round(self.round_number) if self.asks and self.round_number >= 0 else 0

    def take_report(self) -> RoundReport | None:
        """Return the report of `wait_for_version`, once."""
        report, self._news = self._news, None
        return report

    def notify(self) -> None:
        """Nothing runs between the calls."""

    async def _check(self, env_steps: int) -> None:
        self.source.check(self.members.check(await self.members.pool.call(FragmentPool.report)), env_steps)

    async def _count(self) -> Tally:
        """Count everything in the store: nothing is being answered between the calls."""
        return await self.members.tally()
