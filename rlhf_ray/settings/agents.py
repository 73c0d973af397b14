"""What the rest of an experiment knows of its agent's settings, whichever the agent is."""

from __future__ import annotations

from typing import Literal, Protocol


class AgentSettings(Protocol):
    """Settings that every agent has. `Experiment.agent_settings` are those of the experiment's agent."""

    @property
    def num_envs(self) -> int:
        """Parallel environments per env runner."""

    @property
    def num_env_runners(self) -> int:
        """Number of Ray actors that collect rollouts; 0: the run's own process collects them."""

    @property
    def env_threads(self) -> int | Literal["auto"]:
        """Threads that step the environments of one env runner; auto: the cores, shared among the env runners."""

    @property
    def max_policy_age(self) -> int | None:
        """Most updates by which a rollout's policy may be behind the one that learns from it; None: no bound."""

    @property
    def num_learners(self) -> int:
        """Number of learner Ray actors; 0: the run's own process learns."""

    @property
    def rollout_length(self) -> int:
        """Steps per environment and iteration."""

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all env runners and environments."""

    @property
    def gamma(self) -> float:
        """Discount factor per step."""
