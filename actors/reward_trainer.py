"""RewardTrainer: fits the reward ensemble in a process of its own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlhf_ray.comparisons import Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings


class StateLostError(RuntimeError):
    """The process was restarted and is not what the caller left: it has to be given its state again."""


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

    def fit(self, updates: int, version: int, *comparisons: Comparisons) -> tuple[FitReport, dict[str, Any]]:
        """Add ``comparisons``, take ``updates`` gradient steps, and return the report and the whole state after it.

        Calling again with the same ``version`` after it was made returns the same version without fitting again.

        Args:
            updates: gradient steps.
            version: the version to make; the one before it must be the current one.
            comparisons: new ones, as many batches as there are.

        Raises:
            StateLostError: the current version is another one, as after a restart.
        """
        current = int(self.trainer.ensemble.version)
        if current == version - 1:
            for batch in comparisons:
                self.trainer.add(batch)
            self._report: FitReport = self.trainer.fit(updates)
        elif current != version:
            raise StateLostError(f"The reward trainer is at version {current}; version {version} cannot follow it.")
        return self._report, self.trainer.state()

    def load_state(self, state: dict[str, Any], comparisons: Comparisons | None) -> None:
        """Go back to ``state`` (see `RewardTrainer.load_state`)."""
        self.trainer.load_state(state, comparisons)
