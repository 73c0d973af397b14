"""GivenClips: the clip source where somebody else's training makes the clips. It takes no environment steps of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import Members, Moment
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.films import Film
from rlhf_ray.queries.pool import Clips, PoolReport


class GivenClips:
    """Hands clips on, and says when there are enough to ask about.

    Args:
        members: the ring's actors.
        people: who are asked, and see films; else None.
        asks: whether anybody is asked.
    """

    def __init__(self, members: Members, people: People | None, *, asks: bool):
        self.members, self.people, self.asks = members, people, asks
        self.env_steps = 0
        self.taken = 0
        """Environment steps of the training."""
        self.waited_for = False
        """Whether somebody waits for the first version, so that no more clips come before it."""
        self.say: Callable[[str], None] = lambda what: None
        self._sent: Any = None
        """What is ready when the pool has taken the clips sent last."""

    @property
    def share(self) -> float:
        """See `ClipSource.share`: people are asked about the first two clips while the others are made."""
        share = min(1.0, self.taken / self.members.settings.fragments.initial_env_steps)
        return share if self.people is not None or share == 1.0 else 0.0

    @share.setter
    def share(self, share: float) -> None:
        """It follows from `taken`."""

    def take(self, clips: Clips, films: Sequence[Film], wait: bool) -> bool:
        """Send clips to the pool and films to the page. Unless told to ``wait``, drop them while the last ones are on their way.

        Returns:
            Whether they were sent.
        """
        if self._sent is not None and not wait and not self.members.executor.ready(self._sent):
            return False
        if self._sent is not None:
            self.members.executor.get(self._sent)  # raises what went wrong
        if films and self.people is not None:
            self.people.page.actor.show.remote(films)
        self._sent = self.members.pool.add.remote(clips)
        return True

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """See `ClipSource.check`.

        Raises:
            SettingError: the first clips cannot be compared.
        """
        fragments = self.members.settings.fragments
        if self.asks and report.fragments < 2 and env_steps >= fragments.initial_env_steps:
            raise SettingError(
                f"fragments.length is {fragments.length}, and {env_steps} environment steps held no two stretches of "
                f"that length within episodes (episodes had {list(report.episode_lengths) or 'no end'} steps): shorten it."
            )
        return report

    async def first(self, env_steps: int, made: Callable[[], None]) -> None:
        """See `ClipSource.first`: the training makes them."""

    def room_for_more(self) -> bool:
        """See `ClipSource.room_for_more`: what acts is not ours."""
        return False

    async def more(self, gathering: int) -> None:
        """See `ClipSource.more`."""

    def offer(self, moment: Moment, round_number: int, *, wait: bool) -> None:
        """See `ClipSource.offer`."""

    def waiting(self) -> bool:
        """See `ClipSource.waiting`."""
        return False

    async def make(self) -> int:
        """See `ClipSource.make`."""
        return 0

    def to_come(self) -> bool:
        """See `ClipSource.to_come`."""
        return self.asks and not self.waited_for

    def metrics(self) -> dict[str, float]:
        """See `ClipSource.metrics`."""
        return {}

    def close(self) -> None:
        """See `ClipSource.close`: nothing was started."""
