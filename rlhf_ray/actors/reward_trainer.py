"""RewardTrainerActor: fits the reward ensemble in its own process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Changes, Pairs
from rlhf_ray.data.failures import blaming
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.comparison_set import NothingToFitError
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings

logger = logging.getLogger(__name__)


class StateLostError(RuntimeError):
    """The process was restarted and lost its state; the caller must restore it."""


@dataclass(frozen=True)
class Fitted:
    """The report of a fit, and the number of the last store event that it included."""

    report: FitReport
    last: int


class RewardTrainerActor:
    """A `RewardTrainer` that detects when a restart has lost its state."""

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
        self._parts = {"reward_model.network": settings.network, "reward_model.loss": settings.loss}
        self._parts |= {f"reward_model.methods ({name})": name for name in settings.methods}
        self._last = 0

    def fit(
        self, updates: int, version: int, changes: Changes, unlabelled: Pairs | None = None, progress: float = 0.0
    ) -> tuple[Fitted, dict[str, Array], dict[str, Any]]:
        """Apply ``changes``, take ``updates`` gradient steps and make a new version.

        Idempotent: calling it again with the same ``version`` returns that version without another fit.

        If no comparison remains (all were withdrawn, or all have weight 0), no version is made: the report is about the current
        version, with 0 ``gradient_steps`` and NaN losses and accuracies. The changes are applied in any case.

        Args:
            updates: gradient steps.
            version: the version to make; must be the current one plus 1.
            changes: changes of comparisons since the last fit.
            unlabelled: pairs that nobody was asked about, for methods that learn from them.
            progress: the training's progress, 0 to 1.

        Returns:
            The report, the version (`RewardEnsemble.state`), and the state after it (`RewardTrainer.state`).

        Raises:
            StateLostError: the current version is a different one, as after a restart.
        """
        current = int(self.trainer.ensemble.version)
        if current == version - 1:
            self.trainer.comparisons.apply(changes)
            self._last = changes.last
            try:
                with blaming(self._parts):
                    self._report: FitReport = self.trainer.fit(updates, unlabelled=unlabelled, progress=progress)
            except NothingToFitError as nothing:
                logger.warning("No new version of the reward model: %s", nothing)
                self._report = FitReport.nothing_fitted(
                    int(self.trainer.ensemble.version), len(self.trainer.comparisons)
                )
        elif current != version:
            raise StateLostError(f"The reward trainer is at version {current}; it can't make version {version} next.")
        state = self.trainer.state()
        return Fitted(self._report, self._last), state["ensemble"], state

    def load_state(self, state: dict[str, Any], comparisons: Changes) -> None:
        """Restore ``state`` (see `RewardTrainer.load_state`)."""
        self.trainer.load_state(state, comparisons)
