"""Settings of the policy and of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import Precision, changeable, require, require_layers, require_values

PolicyNetwork = Literal["auto", "mlp", "nature", "impala", "small"]
PolicyMemory = Literal["none", "gru", "lstm"]


@dataclass(frozen=True)
class PPOSettings:
    """The policy, and its training on the learned reward with RLlib's PPO."""

    network: PolicyNetwork = "auto"
    """Policy network: mlp; nature (CNN of Mnih et al. 2015); impala (residual CNN of Espeholt et al. 2018); small (two
    convolutions, for images such as 16x16); or auto (nature for images, mlp for vectors)."""
    hidden: tuple[int, ...] = (64, 64)
    """Number of units in each hidden layer of the mlp."""
    features: int | None = None
    """Size of the image encoder's output. None: 512 (nature), 256 (impala) or 64 (small)."""
    memory: PolicyMemory = "none"
    """Memory of the policy, from step to step of an episode: none, gru or lstm."""
    memory_units: int = 64
    """Units of the memory."""
    normalize_observations: bool = False
    """Whether the policy normalises observations that are vectors by their running mean and deviation; the reward model sees them
    as they are. Helps where features differ in scale, as in MuJoCo; harms CartPole, whose small angles it squeezes."""
    num_envs: int = 16
    """Parallel environments per env runner."""
    num_env_runners: int = 0
    """Number of Ray actors that collect rollouts, spread over the cluster. 0: collect in the run's own process."""
    env_threads: int | Literal["auto"] = "auto"
    """Threads that step the copies of one env runner where they step in C++ (envpool/). Where they step one by one, as Python
    environments do, each has a process of its own from 2, which pays where a step takes more than about .1 ms. auto: the cores that
    the process may use, shared among the env runners; no processes. The experiment does not depend on it."""
    max_policy_age: int | None = None
    """In asynchronous training, the most updates by which a rollout's policy may be behind the one that learns from it: env runners
    then wait for each other. 0: the learner waits for them too. None: no bound; usually 1, more for slow env runners."""
    num_learners: int = 0
    """Number of learner Ray actors; each minibatch is split evenly among them. 0: learn in the run's own process."""
    gpus_per_learner: float = 0.0
    """GPUs per learner, or for the run's own process if num_learners is 0. A fraction below 1 shares the GPU with other actors."""
    rollout_length: int = 128
    """Steps per environment and iteration."""
    minibatch_size: int = changeable(256)
    """Environment steps per minibatch, that is per gradient step."""
    epochs: int = changeable(10)
    """Passes over each iteration's data."""
    learning_rate: float = changeable(1e-3)
    """Initial learning rate of Adam."""
    final_learning_rate: float | None = changeable(None)
    """Final learning rate, reached linearly at total_env_steps. None: constant."""
    gamma: float = changeable(0.99)
    """Discount factor per step."""
    gae_lambda: float = changeable(0.95)
    """λ of generalised advantage estimation."""
    clip: float = changeable(0.2)
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
        require_values(self, "ppo")
        require_layers(self.hidden, "ppo.hidden")
        require(0 < self.gamma <= 1, "ppo.gamma", self.gamma, "it must be above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "ppo.gae_lambda", self.gae_lambda, "it must be between 0 and 1")
        require(self.clip > 0, "ppo.clip", self.clip, "it must be above 0")
        require(self.features is None or self.features >= 1, "ppo.features", self.features, "it must be 1 or more")
        for name in ("num_envs", "rollout_length", "minibatch_size", "epochs", "memory_units"):
            value = getattr(self, name)
            require(value >= 1, f"ppo.{name}", value, "it must be 1 or more")
        for name in ("num_env_runners", "num_learners", "gpus_per_learner"):
            require(getattr(self, name) >= 0, f"ppo.{name}", getattr(self, name), "it must be 0 or more")
        for name, value in (("minibatch_size", self.minibatch_size), ("rollout_length", self.iteration_env_steps)):
            require(
                value % max(1, self.num_learners) == 0,
                f"ppo.{name}",
                getattr(self, name),
                f"{value} steps can't be split evenly among ppo.num_learners={self.num_learners} learners: make it a multiple",
            )
        threads = self.env_threads
        valid = threads == "auto" or (isinstance(threads, int) and threads >= 1)
        require(valid, "ppo.env_threads", threads, "it must be 1 or more, or auto")
        age = self.max_policy_age
        require(age is None or age >= 0, "ppo.max_policy_age", age, "it must be 0 or more")
        require(self.learning_rate > 0, "ppo.learning_rate", self.learning_rate, "it must be above 0")
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

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all env runners and environments."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)
