"""Record an agent's internals, in this process or over Ray actors: the same bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.actors.episode_player import InsidePlayer
from rlhf_ray.actors.ray_executor import players
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.recorded import Block, InsidePlan, write_blocks
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recordings import Recording
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.transitions import RecordedEpisode
from rlhf_ray.envs.batches import BatchCreator

AHEAD = 2
"""Blocks that each actor has to play next, so that it never waits."""


def levels_of(seed: int, episodes: int) -> list[int]:
    """Return the seeds of ``episodes`` different levels.

    Raises:
        SettingError: ``episodes`` is below 1.
    """
    if episodes < 1:
        raise SettingError(f"episodes is {episodes}; it must be 1 or more.")
    return [int(level) for level in generator(seed, "recordings").choice(2**31 - 1, size=episodes, replace=False)]


def record_inside_with(
    plan: InsidePlan,
    agent: Agent,
    folder: Path,
    *,
    actors: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Record the episodes of ``plan``; an interrupted recording is continued.

    Args:
        plan: what to record.
        agent: the agent.
        folder: the recording's.
        actors: number of Ray actors that play, one CPU each; with 0 or 1, this process does, without Ray.
        watch: called after each episode with those recorded so far and in total.

    Raises:
        SettingError: ``folder`` holds something else.
    """
    make = BatchCreator(plan.environment)

    def alone(blocks: Sequence[Block]) -> Iterator[list[RecordedEpisode]]:
        if blocks:
            player = InsidePlayer(plan, agent, make)
            try:
                yield from map(player.play, blocks)
            finally:
                player.close()

    def together(blocks: Sequence[Block]) -> Iterator[list[RecordedEpisode]]:
        if not blocks:
            return
        with players(InsidePlayer, min(actors, len(blocks)), plan, agent, make) as (ray, playing):

            def play(number: int) -> Any:
                return playing[number % len(playing)].call(InsidePlayer.play, blocks[number])

            ahead = deque(map(play, range(min(AHEAD * actors, len(blocks)))))
            for following in range(len(ahead), len(blocks) + len(ahead)):
                yield ray.get(ahead.popleft())
                if following < len(blocks):
                    ahead.append(play(following))

    return write_blocks(plan, agent, folder, together if actors > 1 else alone, watch)
