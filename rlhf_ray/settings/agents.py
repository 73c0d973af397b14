"""The settings of the agents: those that every one has, PPO's and SAC's."""

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import (
    Count,
    Discount,
    Layers,
    Natural,
    NonNegative,
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
class AgentSettings:
    """Settings that every agent has. `Experiment.agent_settings` are those of the experiment's agent."""

    num_envs: Count = 16
    """Parallel environments per env runner."""
    num_env_runners: Natural = 0
    """Number of Ray actors that collect rollouts, spread over the cluster. 0: collect in the run's own process."""
    env_threads: Count | Literal["auto"] = "auto"
    """Threads that step the copies of one env runner where they step in C++ (envpool/). Where they step one by one, as Python
    environments do, each has a process of its own from 2, which pays where a step takes more than about .5 ms. auto: the cores that
    the process may use, shared among the env runners; no processes. The experiment does not depend on it."""
    max_policy_age: Natural | None = None
    """In asynchronous training, the most updates by which a rollout's policy may be behind the one that learns from it: env runners
    then wait for each other. 0: the learner waits for them too. None: no bound; usually 1, more for slow env runners."""
    num_learners: Natural = 0
    """Number of Ray actors that learn (SAC: at most 1); each minibatch is split evenly among them. 0: the run's process learns."""
    gpus_per_learner: NonNegative = 0.0
    """GPUs per learner, or for the run's own process if num_learners is 0. A fraction below 1 shares the GPU with other actors."""
    rollout_length: Count = 128
    """Steps per environment and iteration. Checkpoints of synchronous runs cut episodes off: let checkpoint_every * rollout_length
    be at least an episode."""
    gamma: Discount = changeable(0.99)
    """Discount factor per step."""
    fresh_policy: bool = True
    """Whether the agent starts anew once the reward model rests (preferences.until below 1). A policy that an early reward taught
    often stays where that one paid; its rollouts have served to ask about."""

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all env runners and environments."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)


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
    normalize_observations: bool = True
    """Whether the policy normalises vectors: each number becomes the mean of two, itself divided by its running deviation, and
    its symlog, sign(x) log(1 + abs(x)), divided by its own if that is below 1. Zeros shift only where the mean is more than a
    deviation away. The reward model sees vectors as they are. False: numbers are scaled by finite bounds to [-1, 1]."""
    minibatch_size: Count = changeable(256)
    """Environment steps per minibatch, that is per gradient step."""
    epochs: Count = changeable(10)
    """Passes over each iteration's data."""
    learning_rate: Positive = changeable(1e-3)
    """Initial learning rate of Adam."""
    final_learning_rate: float | None = changeable(0.0)
    """Final learning rate, reached linearly at total_env_steps, so that the policy settles. None: constant."""
    kl_target: Positive | None = changeable(0.02)
    """Kullback-Leibler divergence, in nats, that an iteration should take the policy from the one that acted. After one of
    over twice as much, steps are of two thirds of the learning rate, again and again; under half of it, they get larger, up to the
    learning rate. None: steps are always of the learning rate, as are those of policies with memory, of several learners, and of
    learners that override RLlib's losses."""
    gae_lambda: Share = changeable(0.95)
    """λ of generalised advantage estimation."""
    clip: Positive = changeable(0.2)
    """Clipping range ε of the probability ratio."""
    entropy_coefficient: float = changeable(0.01)
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
        learners, steps = max(1, self.num_learners), self.iteration_env_steps
        split = f"steps can't be split evenly among ppo.num_learners={learners} learners: make it a multiple"
        rules = (
            ("minibatch_size", self.minibatch_size % learners == 0, f"{self.minibatch_size} {split}"),
            ("rollout_length", steps % learners == 0, f"{steps} {split}"),
            (
                "minibatch_size",
                self.minibatch_size <= steps,
                f"it must be at most {steps}, the steps of an iteration (rollout_length * num_envs * runners)",
            ),
            (
                "precision",
                self.precision != "bfloat16" or (self.memory == "none" and learners == 1),
                "policies with memory (ppo.memory) and several learners (ppo.num_learners) compute in float32: leave it at 'auto'",
            ),
            (
                "minibatch_size",
                self.memory == "none" or self.minibatch_size // learners >= self.rollout_length,
                f"with ppo.memory={self.memory}, minibatches hold whole sequences of up to {self.rollout_length} steps "
                "(ppo.rollout_length): make it at least that for each learner",
            ),
        )
        for name, holds, rule in rules:
            require(holds, f"ppo.{name}", getattr(self, name), rule)


@dataclass(frozen=True)
class SACSettings(AgentSettings):
    """Soft actor-critic (Haarnoja et al. 2018) on the learned reward, used with agent=sac.

    The replay buffer keeps the environment's rewards. Each batch drawn from it gets the newest version of the learned reward, so
    that a new version applies to all past experience at once (PEBBLE, Lee et al. 2021).
    """

    hidden: Layers = (256, 256)
    """Number of units in each hidden layer of the actor and of both critics."""
    fresh_policy: bool = False
    normalize_observations: bool = False
    """Whether actor and critics normalise observations, as ppo.normalize_observations does, over the agent's steps; the reward
    model sees them as they are. Helps where features differ in scale or have no bounds, as in MuJoCo."""
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
    newest_steps: Natural = changeable(0)
    """Half of each batch is drawn from so many of the newest transitions, so that actor and critics know what the policy does now
    (QPA, Hu et al. 2024: ten episodes). 0: all are drawn uniformly."""
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
        most = f"it must be at most sac.buffer_size={self.buffer_size}, the transitions that are kept"
        require(self.newest_steps <= self.buffer_size, "sac.newest_steps", self.newest_steps, most)
        require(
            self.buffer_size >= self.iteration_env_steps,
            "sac.buffer_size",
            self.buffer_size,
            f"it must hold at least one iteration's {self.iteration_env_steps} steps (rollout_length * num_envs * runners)",
        )
