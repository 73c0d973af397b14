"""Skips: what a skipped pair costs, and how many pairs are asked in place of skipped ones."""

from __future__ import annotations

from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.schedule import PROBE
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.store import Tally

MOST_IN_A_ROW = 100
"""Number of skips without an answer in between after which no more pairs are asked in this round (or iteration)."""


class Skips:
    """Counts the skips since the last answer.

    Args:
        preferences: says whether skips use up the label budget, and names the teacher.
    """

    def __init__(self, preferences: PreferenceSettings):
        self.preferences = preferences
        self._held = self._skipped = self._before = 0

    def used(self, tally: Tally) -> int:
        """Return how much of the label budget is used up."""
        return tally.held + (tally.skipped if self.preferences.skips_count else 0)

    def note(self, tally: Tally) -> None:
        """Take note of the store's counts."""
        if tally.held != self._held:
            self._held, self._before = tally.held, tally.skipped
        self._skipped = tally.skipped

    def forget(self) -> None:
        """Start counting again."""
        self._before = self._skipped

    @property
    def hopeless(self) -> bool:
        """Whether to ask no more for now."""
        return self._skipped - self._before >= MOST_IN_A_ROW

    def check_first(self, tally: Tally) -> None:
        """Check that there is an answer for the first fit.

        Raises:
            SettingError: the teacher skipped all pairs.
        """
        if tally.skipped and not tally.held:
            raise SettingError(
                f"preferences.teacher is {self.preferences.teacher!r}, which skipped all of the first {tally.skipped} pairs, so "
                "there is no answer to fit a reward model to. Use a teacher that skips less (teacher=skip: lower preferences.skip)."
            )

    def check_decided(self, tally: Tally) -> None:
        """Check that a scripted teacher's answers say something to a fit.

        Raises:
            SettingError: all of at least `PROBE` answers are ties.
        """
        if tally.ties == tally.held >= PROBE:
            raise SettingError(
                f"preferences.teacher is {self.preferences.teacher!r}, and all of its {tally.held} answers are ties, so there is "
                "nothing to learn from: the true reward is the same in all fragments so far. Let people compare (--teacher human), "
                "or give fragments that differ: longer ones (fragments.length) or more initial ones (fragments.initial_env_steps)."
            )
