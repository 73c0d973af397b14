"""The asynchronous ring for clips that somebody else's training makes: it takes no environment steps of its own."""

from __future__ import annotations

import math
from typing import Any

import ray

from actors.asynchronous import LOOK_EVERY, AsynchronousPipeline
from actors.fragmenter import Clips
from actors.people import PeoplesPipeline
from rlhf_ray.data.errors import SettingError


class WrapperRing(AsynchronousPipeline):
    """Turns as the asynchronous ring does, and asks nothing before the first clips are there.

    Args:
        asks: whether questions are asked; else it fits to what the store holds.
        fits: whether the reward model is fitted; else it only collects preferences.
        **arguments: of `AsynchronousPipeline`, but for those of the collector.
    """

    def __init__(self, *, asks: bool, fits: bool, **arguments: Any):
        self.asks, self.fits = asks, fits
        self.waited_for = False
        """Whether somebody waits for the first version, so that no more clips come before it."""
        self._looked_at = 0
        self._sent: Any = None
        """What is ready when the fragmenter has taken the clips sent last."""
        super().__init__(make_env=None, rollouts=1, spread=0, **arguments)

    def take(self, clips: Clips, wait: bool) -> bool:
        """Send clips to the fragmenter. Unless told to ``wait``, drop them while it has not taken the last ones.

        Returns:
            Whether they were sent.
        """
        if self._sent is not None and not wait and not ray.wait([self._sent], timeout=0)[0]:
            return False
        if self._sent is not None:
            ray.get(self._sent)  # raises what went wrong
        self._sent = self.fragmenter.add.remote(clips)
        return True

    @property
    def labels_due(self) -> int:
        """Labels due by now, in all."""
        return self._due() if self.asks and self._now >= self.fragments.initial_env_steps else 0

    def settle(self) -> tuple[int, int]:
        """Wait for the labels that are due and the fit to them, as far as neither people nor new clips are needed for that.

        Returns:
            How many labels are missing, and how many are due.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        with self._changed:
            while self._labels_to_come() or self._fit_to_come():
                self._changed.wait(LOOK_EVERY)
                self._raise_failure()
            return max(0, self.labels_due - self.answered), self.labels_due

    def close(self) -> None:
        """See `AsynchronousPipeline.close`; where Ray was shut down before, there is nothing left to end."""
        if ray.is_initialized():
            super().close()

    def check_report(self, report: dict[str, Any]) -> dict[str, Any]:
        """See `Pipeline.check_report`; and there must be something to ask about.

        Raises:
            SettingError: the first clips cannot be compared.
        """
        if self.asks and report["pool"] < 2 and self._looked_at >= self.fragments.initial_env_steps:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, and {self._looked_at} environment steps held no two stretches of "
                f"that length within episodes (episodes had {report['episode_lengths'] or 'no end'} steps): shorten it."
            )
        return super().check_report(report)

    def _ask(self) -> None:
        if self.asks and self._may_ask:
            super()._ask()

    @property
    def _may_ask(self) -> bool:
        return self._now >= self.fragments.initial_env_steps

    def _fit(self) -> None:
        if self.fits:
            super()._fit()
        else:
            self._unfitted.clear()  # they are stored, and would fill the object store

    def _check(self) -> None:
        if self._checked_at != self._advances:
            self._looked_at = self._now  # a report asked for earlier may lack the clips of these steps
        super()._check()

    def _answers_to_come(self) -> bool:
        return self.asks and (not self.waited_for or super()._answers_to_come())

    def _labels_to_come(self) -> bool:
        return self.answered < self.labels_due and super()._answers_to_come()

    def _fit_to_come(self) -> bool:
        if not self.fits or self.stages["fitting"].call is not None:
            return self.fits
        if not self._unfitted:
            return False
        if self.version == 0:
            return self.answered >= self.preferences.first_fit_comparisons
        last = self._progress == 1.0 and self.answered >= self._due()
        return last or math.floor(self._progress * self.rounds) > self._fits


class PeoplesWrapperRing(WrapperRing, PeoplesPipeline):
    """The same, asking people, about the first two clips already, while the others are made.

    They are shown what the wrapper drew, or the observations where those are images.
    """

    def _labels_to_come(self) -> bool:
        return self._open(people=False) > 0

    @property
    def _may_ask(self) -> bool:
        return self._now > 0

    def _questions_now(self, wanted: int) -> int:
        share = min(1.0, self._now / self.fragments.initial_env_steps)
        return min(wanted, max(1, math.floor(wanted * share)))
