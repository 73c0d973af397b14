"""Settings of SAC: its networks, its replay buffer and its updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import changeable, require, require_layers, require_values


@dataclass(frozen=True)
class SACSettings:
    """Soft actor-critic (Haarnoja et al. 2018) on the learned reward, used with agent=sac.

    The replay buffer keeps the environment's rewards. Each batch drawn from it gets the newest version of the learned reward, so
    that a new version applies to all past experience at once (PEBBLE, Lee et al. 2021).
    """

    hidden: tuple[int, ...] = (256, 256)
    """Number of units in each hidden layer of the actor and of both critics."""
    normalize_observations: bool = False
    """Whether actor and critics normalise observations by their running mean and deviation over the agent's steps; the reward model
    sees them as they are. Helps where features differ in scale or have no bounds, as in MuJoCo."""
    num_envs: int = 4
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
    """1: learn in a Ray actor. 0: learn in the run's own process."""
    gpus_per_learner: float = 0.0
    """GPUs of the learner. A fraction below 1 shares the GPU with other actors."""
    rollout_length: int = 50
    """Steps per environment and iteration; updates_per_env_step gradient steps for each follow. Checkpoints of synchronous runs cut
    episodes off: let checkpoint_every * rollout_length be at least an episode."""
    updates_per_env_step: float = changeable(1.0)
    """Gradient steps per environment step."""
    learning_starts: int = 1_000
    """Environment steps of the agent before the first gradient step."""
    batch_size: int = changeable(256)
    """Transitions per gradient step."""
    buffer_size: int = 1_000_000
    """Number of transitions that the replay buffer keeps; new ones replace the oldest. It takes memory only as it fills."""
    actor_learning_rate: float = changeable(3e-4)
    """Learning rate of the actor (Adam)."""
    critic_learning_rate: float = changeable(3e-4)
    """Learning rate of the critics (Adam)."""
    alpha_learning_rate: float = changeable(3e-4)
    """Learning rate of the temperature α (Adam). 0: α stays initial_alpha."""
    initial_alpha: float = 0.1
    """Initial temperature α, the weight of the policy's entropy."""
    target_entropy: float | Literal["auto"] = changeable("auto")
    """Entropy of the policy, in nats, that α is adjusted to. auto: minus the number of action dimensions, with actions scaled to
    [-1, 1]; for discrete actions, half the maximum entropy."""
    tau: float = changeable(0.005)
    """Share of the critics that moves into their targets at each gradient step."""
    gamma: float = changeable(0.99)
    """Discount factor per step."""

    def __post_init__(self) -> None:
        require_values(self, "sac")
        require_layers(self.hidden, "sac.hidden")
        require(0 < self.gamma <= 1, "sac.gamma", self.gamma, "it must be above 0 and at most 1")
        require(0 < self.tau <= 1, "sac.tau", self.tau, "it must be above 0 and at most 1")
        for name in ("num_envs", "rollout_length", "batch_size", "buffer_size"):
            require(getattr(self, name) >= 1, f"sac.{name}", getattr(self, name), "it must be 1 or more")
        for name in ("num_env_runners", "gpus_per_learner", "learning_starts", "alpha_learning_rate"):
            require(getattr(self, name) >= 0, f"sac.{name}", getattr(self, name), "it must be 0 or more")
        for name in ("updates_per_env_step", "actor_learning_rate", "critic_learning_rate", "initial_alpha"):
            require(getattr(self, name) > 0, f"sac.{name}", getattr(self, name), "it must be above 0")
        require(self.num_learners in (0, 1), "sac.num_learners", self.num_learners, "it must be 0 or 1")
        threads = self.env_threads
        valid = threads == "auto" or (isinstance(threads, int) and threads >= 1)
        require(valid, "sac.env_threads", threads, "it must be 1 or more, or auto")
        age = self.max_policy_age
        require(age is None or age >= 0, "sac.max_policy_age", age, "it must be 0 or more")
        target = self.target_entropy
        valid = target == "auto" or isinstance(target, int | float)
        require(valid, "sac.target_entropy", target, "it must be a number of nats, or auto")
        require(
            self.buffer_size >= self.iteration_env_steps,
            "sac.buffer_size",
            self.buffer_size,
            f"it must hold at least one iteration's {self.iteration_env_steps} steps (rollout_length * num_envs * runners)",
        )

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all env runners and environments."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)
