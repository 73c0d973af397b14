"""Settings of SAC: its networks, its replay buffer and its updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.agents import AgentSettings
from rlhf_ray.settings.checks import (
    Count,
    Discount,
    Layers,
    Natural,
    NonNegative,
    Positive,
    changeable,
    check_values,
    require,
)


@dataclass(frozen=True)
class SACSettings(AgentSettings):
    """Soft actor-critic (Haarnoja et al. 2018) on the learned reward, used with agent=sac.

    The replay buffer keeps the environment's rewards. Each batch drawn from it gets the newest version of the learned reward, so
    that a new version applies to all past experience at once (PEBBLE, Lee et al. 2021).
    """

    hidden: Layers = (256, 256)
    """Number of units in each hidden layer of the actor and of both critics."""
    normalize_observations: bool = False
    """Whether actor and critics normalise observations by their running mean and deviation over the agent's steps; the reward model
    sees them as they are. Helps where features differ in scale or have no bounds, as in MuJoCo."""
    num_envs: Count = 4
    rollout_length: Count = 50
    num_learners: Literal[0, 1] = 0
    updates_per_env_step: Positive = changeable(1.0)
    """Gradient steps per environment step."""
    learning_starts: Natural = 1_000
    """Environment steps of the agent before the first gradient step."""
    batch_size: Count = changeable(256)
    """Transitions per gradient step."""
    buffer_size: Count = 1_000_000
    """Number of transitions that the replay buffer keeps; new ones replace the oldest. It takes memory only as it fills."""
    actor_learning_rate: Positive = changeable(3e-4)
    """Learning rate of the actor (Adam)."""
    critic_learning_rate: Positive = changeable(3e-4)
    """Learning rate of the critics (Adam)."""
    alpha_learning_rate: NonNegative = changeable(3e-4)
    """Learning rate of the temperature α (Adam). 0: α stays initial_alpha."""
    initial_alpha: Positive = 0.1
    """Initial temperature α, the weight of the policy's entropy."""
    target_entropy: float | Literal["auto"] = changeable("auto")
    """Entropy of the policy, in nats, that α is adjusted to. auto: minus the number of action dimensions, with actions scaled to
    [-1, 1]; for discrete actions, half the maximum entropy."""
    tau: Discount = changeable(0.005)
    """Share of the critics that moves into their targets at each gradient step."""

    def __post_init__(self) -> None:
        check_values(self, "sac")
        require(
            self.buffer_size >= self.iteration_env_steps,
            "sac.buffer_size",
            self.buffer_size,
            f"it must hold at least one iteration's {self.iteration_env_steps} steps (rollout_length * num_envs * runners)",
        )
