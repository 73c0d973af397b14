"""GivenFragments: the fragment source for training outside of this library. It takes no environment steps itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_ray.actors.executor import Ref
from rlhf_ray.actors.ring import Pretrained, Progress
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.films import Film
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport


class GivenFragments:
    """Passes fragments to the pool, and tracks when there are enough to ask about, if the ring ``asks``."""

    def __init__(self, actors: RingActors, *, asks: bool):
        self.actors, self.asks = actors, asks
        self.env_steps = 0
        self.taken = 0
        """Environment steps the training has taken, without unseen ones."""
        self.unseen = 0
        """Environment steps taken while collecting was paused."""
        self.waited_for = False
        """Whether the training waits for the first reward version, so that no more fragments arrive before it."""
        self._sent: Ref[PoolReport] | None = None
        """Reference that is ready once the pool has stored the last fragments."""

    @property
    def share(self) -> float:
        """See `FragmentSource.share`: people can compare the first two fragments while others are still being made."""
        share = min(1.0, self.taken / self.actors.settings.fragments.initial_env_steps)
        return share if self.actors.people is not None or share == 1.0 else 0.0

    @share.setter
    def share(self, share: float) -> None:
        """Ignored: the share follows from `taken`."""

    def take(self, fragments: CutFragments, films: Sequence[Film], wait: bool) -> bool:
        """Send fragments to the pool and films to the page, and with ``wait`` wait until the pool has them; return whether sent.

        Without ``wait``, drops them while the last ones are in flight.
        """
        if self._sent is not None and not wait and not self.actors.executor.ready(self._sent):
            return False
        if self._sent is not None:
            self.actors.executor.get(self._sent)  # raises the actor's error
        if films:
            self.actors.show_made(tuple(films))
        self._sent = self.actors.pool.call(FragmentPool.add, fragments)
        if wait:
            self.actors.executor.get(self._sent)
        return True

    def film_last(self, policy: PolicyFactory, env_steps: int) -> None:
        """See `FragmentSource.film_last`: there are no films."""

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """See `FragmentSource.check`.

        Calls may reach the pool in another order than they were made, and a lost pool begins empty: what it answered to the last
        fragments knows better.

        Raises:
            SettingError: there are too few initial fragments to compare.
        """
        fragments, seen, sent = self.actors.settings.fragments, env_steps - self.unseen, self._sent
        if not self.asks or report.fragments >= 2 or seen < fragments.initial_env_steps:
            return report
        if sent is not None and not self.actors.executor.ready(sent):
            return report
        last = report if sent is None else self.actors.executor.get(sent)
        if last.fragments < 2:
            raise SettingError(
                f"fragments.length is {fragments.length}, but {seen} environment steps gave fewer than two fragments of "
                f"that length within an episode (episode lengths: {list(last.episode_lengths) or 'none ended'}): lower it."
            )
        return report

    async def first(self, env_steps: int, made: Callable[[], None], pretrained: Pretrained | None) -> None:
        """See `FragmentSource.first`: the training makes them."""

    def room_for_more(self) -> bool:
        """See `FragmentSource.room_for_more`: this library does not control the agent."""
        return False

    async def more(self, gathering: int) -> None:
        """See `FragmentSource.more`."""

    def offer(self, progress: Progress, round_number: int, *, wait: bool) -> None:
        """See `FragmentSource.offer`."""

    def waiting(self) -> bool:
        """See `FragmentSource.waiting`."""
        return False

    async def make(self) -> int:
        """See `FragmentSource.make`."""
        return 0

    def to_come(self) -> bool:
        """See `FragmentSource.to_come`."""
        return self.asks and not self.waited_for

    def metrics(self) -> dict[str, float]:
        """See `FragmentSource.metrics`."""
        return {}

    def close(self) -> None:
        """See `FragmentSource.close`: there is nothing to close."""
