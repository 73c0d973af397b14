"""Settings of a reward model's fit to recorded rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import name_parts, require, require_values
from rlhf_ray.settings.reward_model import RewardModelSettings

SUPERVISED_MODEL = RewardModelSettings(
    ensemble_size=1, bootstrap=False, use_next_state=True, normalize_inputs="running"
)
"""Defaults of the reward model for a fit to recorded rewards: one network that sees the state, the action and the next state."""

Balance = Literal["none", "sampler", "inverse_frequency", "drop_zeros"]


@dataclass(frozen=True)
class SupervisedSettings:
    """How a reward model is fitted to recorded rewards."""

    objective: str = "regression"
    """What is fitted: regression (squared error); huber (squared error, absolute beyond one unit: for outliers); classification
    (whether the reward is zero; the learned reward is the probability that it is not); two_part (whether the reward is zero, and
    how large it is otherwise); or module:Name for your own (`rlhf_ray.reward.supervised.objectives.RewardObjective`)."""
    balance: Balance = "none"
    """How training makes up for rare zero or nonzero rewards: none; sampler (draws both kinds equally often); inverse_frequency
    (weights the loss); drop_zeros (leaves zero-reward steps out). The test part is never changed."""
    keep_zeros: float | None = None
    """Fraction (0 < x ≤ 1) of the zero-reward training steps that drop_zeros keeps. None: as many as there are nonzero ones."""
    test_share: float = 0.2
    """Fraction (0 < x < 1) of the episodes that are only tested on."""
    epochs: int = 10
    """Passes over the training steps. An epoch has as many gradient steps with each balance."""
    batch_size: int = 64
    """Steps per gradient step."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    adversarial_rounds: int = 0
    """Rounds of adversarial training after the fit. In each, visualise inputs that the reward scores highly, and train on them with
    nonsense_reward. 0: none."""
    adversarial_share: float = 0.1
    """Fraction (0 < x < 1) of each batch that are visualisations in adversarial training."""
    nonsense_reward: float | None = None
    """Reward of visualisations in adversarial training. None: the median of the training rewards."""

    def __post_init__(self) -> None:
        require_values(self, "supervised")
        name_parts(self, "objective")
        for name in ("epochs", "batch_size"):
            require(getattr(self, name) >= 1, f"supervised.{name}", getattr(self, name), "it must be 1 or more")
        for name in ("test_share", "adversarial_share"):
            value = getattr(self, name)
            require(0 < value < 1, f"supervised.{name}", value, "it must be above 0 and below 1")
        require(self.learning_rate > 0, "supervised.learning_rate", self.learning_rate, "it must be above 0")
        require(
            self.keep_zeros is None or 0 < self.keep_zeros <= 1,
            "supervised.keep_zeros",
            self.keep_zeros,
            "it must be above 0 and at most 1, or None for as many zeros as other rewards",
        )
        require(
            self.keep_zeros is None or self.balance == "drop_zeros",
            "supervised.keep_zeros",
            self.keep_zeros,
            f"supervised.balance={self.balance} keeps all steps: set it to drop_zeros, or remove keep_zeros",
        )
        rounds = self.adversarial_rounds
        require(rounds >= 0, "supervised.adversarial_rounds", rounds, "it must be 0 or more")
