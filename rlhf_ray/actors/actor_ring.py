"""ActorRing: what the synchronous and the asynchronous ring share."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_ray.actors.fragment_source import FragmentSource
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import Stop, never
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.queries.schedule import LabelSchedule

FIRST_FIT = "fitting the reward model to the first answers"


class ActorRing:
    """A ring with actors.

    Args:
        actors: the ring's actors.
        schedule: when how many labels are due.
        source: makes fragments other than those from the agent's own rollouts.
        callbacks: told when the first fit starts.
        fits: whether to fit the reward model; otherwise it only collects preferences.
    """

    def __init__(
        self,
        actors: RingActors,
        schedule: LabelSchedule,
        source: FragmentSource,
        callbacks: RingCallbacks,
        *,
        fits: bool = True,
    ):
        self.actors, self.schedule, self.source, self.callbacks = actors, schedule, source, callbacks
        self.fits, self.collecting = fits, True

    @property
    def people(self) -> People | None:
        """See `Ring.people`."""
        return self.actors.people

    @property
    def env_steps(self) -> int:
        """See `Ring.env_steps`."""
        return self.source.env_steps

    @property
    def version(self) -> int:
        """See `Ring.version`."""
        return self.actors.version

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`."""
        return self.actors.newest_reward()

    def check(self) -> None:
        """See `Ring.check`. Here, everything happens within the calls."""

    def farewell(self, env_steps: int, stop: Stop = never, policy: Callable[[], PolicyFactory] | None = None) -> None:
        """See `Ring.farewell`. Waits for the episode and for the pages, up to two minutes."""
        if self.people is None or self.people.left:
            return
        if policy is not None and self.people.questions.pages and not stop():
            self.source.film_last(policy(), env_steps)
        self.people.farewell("over", stop, env_steps)

    def close(self) -> None:
        """See `Ring.close`. Loses no answers: gatherers commit them themselves."""
        if self.people is not None:
            self.people.farewell("stopped")
        self.end()
        self.source.close()
        self.actors.close()

    def end(self) -> None:
        """End the ring's own work."""
        raise NotImplementedError
