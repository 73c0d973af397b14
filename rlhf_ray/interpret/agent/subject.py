"""What the study of an agent examines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlhf_ray import envs
from rlhf_ray.agents.agent import Agent
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.study.step import StepContext


@dataclass(frozen=True)
class AgentSubject:
    """An agent in an environment.

    Attributes:
        agent: the agent.
        environment: the environment's name.
        seed: seeds every draw.
        effort: amount of work relative to the normal report: 0.1 for a quick look.
        batches: makes that many copies of the environment; None: `rlhf_ray.envs.make_batch` does, by name.
    """

    agent: Agent
    environment: str
    seed: int = 0
    effort: float = 1.0
    batches: Callable[[int], EnvBatch] | None = None

    @property
    def digest(self) -> str:
        """Identify agent and environment."""
        return f"{self.agent.digest} {self.environment}"

    def make_batch(self, n: int) -> EnvBatch:
        """Make ``n`` copies of the environment."""
        return envs.make_batch(self.environment, n) if self.batches is None else self.batches(n)


AgentContext = StepContext[AgentSubject]
"""What a step that examines an agent gets."""
