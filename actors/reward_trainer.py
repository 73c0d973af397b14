"""RewardTrainer: fits the reward ensemble in a process of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Changes
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.trainer import FitReport, NothingToFitError
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings

logger = logging.getLogger(__name__)


class StateLostError(RuntimeError):
    """The process was restarted and is not what the caller left: it has to be given its state again."""


@dataclass(frozen=True)
class Fitted:
    """What a fit came to, and the number of the last event of the store that it took in."""

    report: FitReport
    last: int


class RewardTrainerActor:
    """A `RewardTrainer` that notices when it is not the one its caller last spoke to."""

    def __init__(
        self,
        settings: RewardModelSettings,
        preferences: PreferenceSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        seed: int,
    ):
        self.trainer = RewardTrainer(
            settings, observation_space, action_space, held_out_share=preferences.held_out_share, seed=seed
        )
        self._last = 0

    def fit(self, updates: int, version: int, changes: Changes) -> tuple[Fitted, dict[str, Array], dict[str, Any]]:
        """Take in ``changes``, take ``updates`` gradient steps and make a version.

        Calling again with the same ``version`` after it was made returns the same version without fitting again.

        Where people took back all there was, or nobody left counts, there is nothing to fit and no version is made: the report
        is of the current version, with ``gradient_steps`` 0 and NaN for losses and accuracies. What was taken in stays so.

        Args:
            updates: gradient steps.
            version: the version to make; the one before it must be the current one.
            changes: what has become of comparisons since the last fit.

        Returns:
            What came of it, the version (`RewardEnsemble.state`), and the whole state after it (`RewardTrainer.state`).

        Raises:
            StateLostError: the current version is another one, as after a restart.
        """
        current = int(self.trainer.ensemble.version)
        if current == version - 1:
            self.trainer.apply(changes)
            self._last = changes.last
            try:
                self._report: FitReport = self.trainer.fit(updates)
            except NothingToFitError as nothing:
                logger.warning("No new version of the reward model: %s", nothing)
                self._report = self.trainer.report_nothing()
        elif current != version:
            raise StateLostError(f"The reward trainer is at version {current}; version {version} cannot follow it.")
        state = self.trainer.state()
        return Fitted(self._report, self._last), state["ensemble"], state

    def load_state(self, state: dict[str, Any], comparisons: Changes) -> None:
        """Go back to ``state`` (see `RewardTrainer.load_state`)."""
        self.trainer.load_state(state, comparisons)
