"""InsidePlayer: plays blocks of episodes for a recording with an agent's internals."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.recorded import Block, InsidePlan
from rlhf_ray.data.transitions import RecordedEpisode
from rlhf_ray.envs.batch import EnvBatch


class InsidePlayer:
    """Plays the blocks of a plan, each the same on any player.

    Args:
        plan: the plan.
        agent: the agent.
        make_batch: makes copies of the plan's environment.
    """

    def __init__(self, plan: InsidePlan, agent: Agent, make_batch: Callable[[int], EnvBatch]):
        self._plan, self._agent = plan, agent
        self._batch = make_batch(plan.copies)

    def play(self, block: Block) -> list[RecordedEpisode]:
        """Play the episodes of ``block``."""
        return self._plan.play(self._agent, self._batch, block)

    def close(self) -> None:
        """Free the copies."""
        self._batch.close()
