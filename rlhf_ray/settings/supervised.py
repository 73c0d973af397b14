"""Settings of a reward model's fit to recorded rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_ray.settings.checks import Bounds, Count, Discount, Natural, Positive, check_values, name_parts, require
from rlhf_ray.settings.reward_model import RewardModelSettings

SUPERVISED_MODEL = RewardModelSettings(
    ensemble_size=1, bootstrap=False, use_next_state=True, normalize_inputs="running"
)
"""Defaults of the reward model for a fit to recorded rewards: one network that sees the state, the action and the next state."""

Part = Annotated[float, Bounds(0, 1, above=True, below=True)]
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
    keep_zeros: Discount | None = None
    """Fraction (0 < x ≤ 1) of the zero-reward training steps that drop_zeros keeps. None: as many as there are nonzero ones."""
    test_share: Part = 0.2
    """Fraction (0 < x < 1) of the episodes that are only tested on."""
    epochs: Count = 10
    """Passes over the training steps. An epoch has as many gradient steps with each balance."""
    batch_size: Count = 64
    """Steps per gradient step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    adversarial_rounds: Natural = 0
    """Rounds of adversarial training after the fit. In each, visualise inputs that the reward scores highly, and train on them with
    nonsense_reward. 0: none."""
    adversarial_share: Part = 0.1
    """Fraction (0 < x < 1) of each batch that are visualisations in adversarial training."""
    nonsense_reward: float | None = None
    """Reward of visualisations in adversarial training. None: the median of the training rewards."""

    def __post_init__(self) -> None:
        name_parts(self, "objective")
        check_values(self, "supervised")
        require(
            self.keep_zeros is None or self.balance == "drop_zeros",
            "supervised.keep_zeros",
            self.keep_zeros,
            f"supervised.balance={self.balance} keeps all steps: set it to drop_zeros, or remove keep_zeros",
        )
