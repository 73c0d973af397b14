"""Settings of the policy and of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.agents import AgentSettings
from rlhf_ray.settings.checks import (
    Count,
    Layers,
    Positive,
    Precision,
    Share,
    changeable,
    check_values,
    require,
)

PolicyNetwork = Literal["auto", "mlp", "nature", "impala", "small"]
PolicyMemory = Literal["none", "gru", "lstm"]


@dataclass(frozen=True)
class PPOSettings(AgentSettings):
    """The policy, and its training on the learned reward with RLlib's PPO."""

    network: PolicyNetwork = "auto"
    """Policy network: mlp; nature (CNN of Mnih et al. 2015); impala (residual CNN of Espeholt et al. 2018); small (two
    convolutions, for images such as 16x16); or auto (nature for images, mlp for vectors)."""
    hidden: Layers = (64, 64)
    """Number of units in each hidden layer of the mlp."""
    features: Count | None = None
    """Size of the image encoder's output. None: 512 (nature), 256 (impala) or 64 (small)."""
    memory: PolicyMemory = "none"
    """Memory of the policy, from step to step of an episode: none, gru or lstm."""
    memory_units: Count = 64
    """Units of the memory."""
    normalize_observations: bool = False
    """Whether the policy normalises observations that are vectors by their running mean and deviation; the reward model sees them
    as they are. Helps where features differ in scale, as in MuJoCo; harms CartPole, whose small angles it squeezes."""
    minibatch_size: Count = changeable(256)
    """Environment steps per minibatch, that is per gradient step."""
    epochs: Count = changeable(10)
    """Passes over each iteration's data."""
    learning_rate: Positive = changeable(1e-3)
    """Initial learning rate of Adam."""
    final_learning_rate: float | None = changeable(None)
    """Final learning rate, reached linearly at total_env_steps. None: constant."""
    gae_lambda: Share = changeable(0.95)
    """λ of generalised advantage estimation."""
    clip: Positive = changeable(0.2)
    """Clipping range ε of the probability ratio."""
    entropy_coefficient: float = changeable(0.0)
    """Weight of the entropy bonus."""
    value_coefficient: float = changeable(0.5)
    """Weight of the value loss."""
    max_grad_norm: float = changeable(0.5)
    """Maximum global gradient norm; larger gradients are scaled down."""
    precision: Precision = "auto"
    """Numbers of an image encoder in gradient steps: float32; bfloat16; or auto (bfloat16 on CPUs with instructions for it,
    otherwise float32). Actions and values are always computed in float32, as are the steps of policies with memory, of several
    learners, and of learners that override RLlib's losses."""
    initial_log_std: float = 0.0
    """For continuous actions: initial log standard deviation of the policy, with actions scaled to [-1, 1]."""

    def __post_init__(self) -> None:
        check_values(self, "ppo")
        for name, value in (("minibatch_size", self.minibatch_size), ("rollout_length", self.iteration_env_steps)):
            require(
                value % max(1, self.num_learners) == 0,
                f"ppo.{name}",
                getattr(self, name),
                f"{value} steps can't be split evenly among ppo.num_learners={self.num_learners} learners: make it a multiple",
            )
        require(
            self.minibatch_size <= self.iteration_env_steps,
            "ppo.minibatch_size",
            self.minibatch_size,
            f"it must be at most {self.iteration_env_steps}, the steps of an iteration (rollout_length * num_envs * runners)",
        )

        require(
            self.precision != "bfloat16" or (self.memory == "none" and self.num_learners <= 1),
            "ppo.precision",
            self.precision,
            "policies with memory (ppo.memory) and several learners (ppo.num_learners) compute in float32: leave it at 'auto'",
        )
        require(
            not self.normalize_observations or self.num_learners <= 1,
            "ppo.normalize_observations",
            True,
            f"each of ppo.num_learners={self.num_learners} learners would have its own statistics: use one learner",
        )
        require(
            self.memory == "none" or self.minibatch_size // max(1, self.num_learners) >= self.rollout_length,
            "ppo.minibatch_size",
            self.minibatch_size,
            f"with ppo.memory={self.memory}, minibatches hold whole sequences of up to {self.rollout_length} steps "
            "(ppo.rollout_length): make it at least that for each learner",
        )
