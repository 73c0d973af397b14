"""The reward networks and how they are fitted to the comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rlhf_ray.settings.checks import name_parts, require, require_choices, require_layers

Activation = Literal["relu", "leaky_relu", "tanh"]


@dataclass(frozen=True)
class RewardModelSettings:
    """The reward networks and how they are fitted to the comparisons."""

    network: str = "auto"
    """mlp; cnn; auto: cnn for images and mlp for vectors; or module:Name for a network of your own
    (`rlhf_ray.reward.networks`)."""
    loss: str = "bradley_terry"
    """What is minimised: bradley_terry, the cross entropy of the Bradley-Terry model; or module:Name for a loss of your own
    (`rlhf_ray.reward.likelihood.Loss`)."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer (for a cnn: of those after the convolutions)."""
    activation: Activation = "leaky_relu"
    """Activation of the hidden layers."""
    use_state: bool = True
    """Whether the reward sees the observation before the step."""
    use_action: bool = True
    """Whether it sees the action."""
    use_next_state: bool = False
    """Whether it sees the observation after the step."""
    use_done: bool = False
    """Whether it sees that the step ended the episode."""
    ensemble_size: int = 3
    """Networks in the ensemble. The reward is the mean of their normalised outputs."""
    bootstrap: bool = True
    """Whether each member weighs the comparisons by its own Poisson(1) draw (a bootstrap), so that they differ."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""
    weight_decay: float = 1e-2
    """Weight decay of AdamW."""
    batch_size: int = 32
    """Comparisons per gradient step."""
    initial_updates: int = 200
    """Gradient steps of the first fit."""
    updates: int = 30
    """Gradient steps of each later fit, which starts from the fitted networks and sees all comparisons so far."""
    window: int | None = None
    """Newest comparisons that a fit sees (first in, first out; all stay in the store); None: all."""
    label_noise: float | None = None
    """Share of answers (0 to below 1) assumed to be given at random. None: 0.1 where people are asked while it trains
    (Christiano et al. 2017, section 2.2.3), else 0."""
    annotator_errors: bool = False
    """Whether to estimate how often each annotator answers the opposite, after each fit, and to use that in place of label_noise:
    for several people of whom some are less careful. Needs some hundred answers to tell them apart."""
    discount: float = 1.0
    """Discount of rewards within a fragment, per step, in the likelihood (1: none)."""
    gpus: float = 0.0
    """GPUs of the reward trainer: 1 for one of its own, a share (as 0.5, with ppo.gpus_per_learner 0.5) to use one with a learner,
    0 to fit on the CPU, which is faster for small networks on vectors."""

    def __post_init__(self) -> None:
        require_choices(self, "reward_model")
        name_parts(self, "network", "loss")
        require_layers(self.hidden, "reward_model.hidden")
        require(
            self.use_state or self.use_action or self.use_next_state or self.use_done,
            "reward_model.use_state",
            False,
            "the reward needs at least one input: set one of use_state, use_action, use_next_state, use_done",
        )
        for name in ("ensemble_size", "batch_size", "initial_updates", "updates"):
            value = getattr(self, name)
            require(value >= 1, f"reward_model.{name}", value, "it must be 1 or more")
        require(
            self.window is None or self.window >= 1,
            "reward_model.window",
            self.window,
            "it must be 1 or more, or None for all comparisons",
        )
        require(self.learning_rate > 0, "reward_model.learning_rate", self.learning_rate, "it must be above 0")
        require(self.weight_decay >= 0, "reward_model.weight_decay", self.weight_decay, "it must be 0 or more")
        noise = self.label_noise
        valid = noise is None or 0 <= noise < 1
        require(valid, "reward_model.label_noise", noise, "it must be at least 0 and below 1, or None for the default")
        require(
            not (self.annotator_errors and self.label_noise),
            "reward_model.label_noise",
            self.label_noise,
            "reward_model.annotator_errors takes its place: leave out one of them",
        )
        require(0 < self.discount <= 1, "reward_model.discount", self.discount, "it must be above 0 and at most 1")
        require(
            0 <= self.gpus <= 1, "reward_model.gpus", self.gpus, "it must be between 0 and 1: the trainer uses one GPU"
        )

    def for_people(self) -> RewardModelSettings:
        """The same with the noise that answers of people are assumed to have, where none is set."""
        if self.label_noise is not None or self.annotator_errors:
            return self
        return replace(self, label_noise=PEOPLES_NOISE)


PEOPLES_NOISE = 0.1
"""What `RewardModelSettings.label_noise` is for people unless it is set."""
