"""The policy and how PPO trains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import require, require_choices, require_layers

PolicyNetwork = Literal["auto", "mlp", "nature", "impala"]


@dataclass(frozen=True)
class PPOSettings:
    """Proximal policy optimisation (RLlib's), on the learned reward."""

    network: PolicyNetwork = "auto"
    """mlp, nature (the DQN paper's CNN), impala (the residual CNN), or auto: nature for images and mlp for vectors."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of the mlp."""
    num_envs: int = 16
    """Environment copies each runner steps together."""
    num_env_runners: int = 0
    """Ray actors that collect rollouts, spread over the cluster; 0 collects in the run's own process."""
    num_learners: int = 0
    """Ray actors that learn together, each from its share of every minibatch; 0 learns in the run's own process."""
    gpus_per_learner: float = 0.0
    """GPUs of each learner, or of the run's own process where that learns; a share below 1 leaves the rest to others."""
    rollout_length: int = 128
    """Steps of each environment copy per iteration."""
    minibatch_size: int = 256
    """Steps per gradient step."""
    epochs: int = 10
    """Passes over each iteration's steps."""
    learning_rate: float = 1e-3
    """Learning rate of Adam at the start."""
    final_learning_rate: float | None = None
    """Learning rate at total_env_steps, reached linearly; None keeps the first."""
    gamma: float = 0.99
    """Discount of rewards, per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """Clipping range of the probability ratio."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    initial_log_std: float = 0.0
    """For continuous actions: log standard deviation of the policy at the start (actions are scaled to [-1, 1])."""

    def __post_init__(self) -> None:
        require_choices(self, "ppo")
        require_layers(self.hidden, "ppo.hidden")
        require(0 < self.gamma <= 1, "ppo.gamma", self.gamma, "it must be above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "ppo.gae_lambda", self.gae_lambda, "it must be between 0 and 1")
        require(self.clip > 0, "ppo.clip", self.clip, "it must be above 0")
        for name in ("num_envs", "rollout_length", "minibatch_size", "epochs"):
            value = getattr(self, name)
            require(value >= 1, f"ppo.{name}", value, "it must be 1 or more")
        for name in ("num_env_runners", "num_learners", "gpus_per_learner"):
            require(getattr(self, name) >= 0, f"ppo.{name}", getattr(self, name), "it must be 0 or more")
        for name, value in (("minibatch_size", self.minibatch_size), ("rollout_length", self.iteration_env_steps)):
            require(
                value % max(1, self.num_learners) == 0,
                f"ppo.{name}",
                getattr(self, name),
                f"ppo.num_learners={self.num_learners} learners cannot share {value} steps evenly: make it a multiple",
            )
        require(self.learning_rate > 0, "ppo.learning_rate", self.learning_rate, "it must be above 0")
        require(
            self.minibatch_size <= self.iteration_env_steps,
            "ppo.minibatch_size",
            self.minibatch_size,
            f"an iteration has only {self.iteration_env_steps} steps (rollout_length * num_envs * runners)",
        )

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all runners and environment copies."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)
