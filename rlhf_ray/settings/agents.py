"""The settings that every agent has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import Count, Discount, Natural, NonNegative, changeable


@dataclass(frozen=True)
class AgentSettings:
    """Settings that every agent has. `Experiment.agent_settings` are those of the experiment's agent."""

    num_envs: Count = 16
    """Parallel environments per env runner."""
    num_env_runners: Natural = 0
    """Number of Ray actors that collect rollouts, spread over the cluster. 0: collect in the run's own process."""
    env_threads: Count | Literal["auto"] = "auto"
    """Threads that step the copies of one env runner where they step in C++ (envpool/). Where they step one by one, as Python
    environments do, each has a process of its own from 2, which pays where a step takes more than about .1 ms. auto: the cores that
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

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all env runners and environments."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)
