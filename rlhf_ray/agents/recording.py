"""Record what happens inside an agent: the plan, its blocks, and the loop that writes what the recording lacks."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import SHARES
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recorded_episode import ACTIVATION, GAMMA, RecordedEpisode
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs.batch import EnvBatch

ACTING = ("greedy", "epsilon", "sampled")
"""How actions are chosen: the most likely; that, but with probability epsilon a uniformly random one; drawn from the policy."""


@dataclass(frozen=True)
class Block:
    """Episodes that are played together: their numbers in the recording depend on nothing else.

    Attributes:
        first: number of its first episode in the recording.
        acting: one of `ACTING`.
        levels: their levels.
    """

    first: int
    acting: str
    levels: tuple[int, ...]


@dataclass(frozen=True)
class InsidePlan:
    """What to record of an agent. The episodes depend on nothing else.

    Attributes:
        environment: the environment's name.
        levels: one episode of each.
        acting: share of the episodes by how actions are chosen (`ACTING`); shares need not add up to 1.
        epsilon: share of random actions of epsilon.
        seed: seeds the random actions.
        copies: episodes that are played together.
        max_steps: cuts longer episodes; None for no limit.
        keep: layers whose outputs are kept.
        keep_states: whether to keep the environment's state at each observation.
        gamma: discount factor of the return that normalises rewards.

    Raises:
        SettingError: a value is invalid.
    """

    environment: str
    levels: Sequence[int]
    acting: Mapping[str, float] = field(default_factory=lambda: {"greedy": 1.0})
    epsilon: float = 0.15
    seed: int = 0
    copies: int = 16
    max_steps: int | None = None
    keep: Sequence[str] = ()
    keep_states: bool = False
    gamma: float = GAMMA

    def __post_init__(self) -> None:
        for name, share in self.acting.items():
            if name not in ACTING:
                raise SettingError(f"mix names {name!r}; internals are recorded with {', '.join(ACTING)}.")
            if not 0 < share < float("inf"):
                raise SettingError(f"mix gives {name} the share {share:g}; it must be above 0.")
        if not self.acting:
            raise SettingError("mix is empty; name how to act, for example greedy=1.")
        if not len(self.levels):
            raise SettingError("levels is empty; give one level per episode.")
        if not 0 <= self.epsilon <= 1:
            raise SettingError(f"epsilon is {self.epsilon:g}; it must be between 0 and 1.")
        if self.copies < 1 or (self.max_steps is not None and self.max_steps < 1):
            raise SettingError(f"copies is {self.copies}, max_steps {self.max_steps}; they must be 1 or more.")

    def about(self, agent: Agent) -> dict[str, Any]:
        """Return the plan as JSON values, for the recording's manifest."""
        return {
            "environment": self.environment,
            "agent": agent.digest,
            "policies": list(self.acting),
            "mix": dict(self.acting),
            "epsilon": self.epsilon,
            "seed": self.seed,
            "episodes": len(self.levels),
            "levels": f"{len(self.levels)}, crc32 {zlib.crc32(np.array(self.levels, np.int64).tobytes()):08x}",
            "copies": self.copies,
            "max_steps": self.max_steps,
            "layers": list(self.keep),
            "states": self.keep_states,
            "memory_size": agent.memory_size,
            "split": {"by": "sha256 of the level seed", **SHARES},
        }

    def blocks(self) -> list[Block]:
        """Divide the levels into blocks; ways to act alternate, so that any part of the recording has nearly the same shares."""
        total = sum(self.acting.values())
        wanted = {name: len(self.levels) * share / total for name, share in self.acting.items()}
        quota = {name: int(count) for name, count in wanted.items()}
        for name in sorted(wanted, key=lambda each: quota[each] - wanted[each])[
            : len(self.levels) - sum(quota.values())
        ]:
            quota[name] += 1
        blocks: list[Block] = []
        played: Counter[str] = Counter()
        first = 0
        while first < len(self.levels):
            name = min(
                (each for each in quota if played[each] < quota[each]), key=lambda each: played[each] / quota[each]
            )
            count = min(self.copies, quota[name] - played[name])
            blocks.append(Block(first, name, tuple(map(int, self.levels[first : first + count]))))
            played[name] += count
            first += count
        return blocks

    def play(self, agent: Agent, batch: EnvBatch, block: Block) -> list[RecordedEpisode]:
        """Play the episodes of a block. ``batch`` has `copies` copies, so that floats come out the same everywhere."""
        assert batch.n == self.copies, (batch.n, self.copies)
        episodes = play(
            agent,
            batch,
            block.levels,
            greedy=block.acting != "sampled",
            epsilon=self.epsilon if block.acting == "epsilon" else 0.0,
            seed=self.seed,
            indices=range(block.first, block.first + len(block.levels)),
            max_steps=self.max_steps,
            keep=tuple(self.keep),
            keep_states=self.keep_states,
        )
        return to_recorded(episodes, block.acting)


def to_recorded(episodes: Episodes, policy: str = "") -> list[RecordedEpisode]:
    """Convert whole episodes to those of a recording."""
    recorded = []
    for i, length in enumerate(episodes.lengths.tolist()):
        inside = {
            "logits": np.asarray(episodes.logits[i, :length], np.float32),
            "value": np.asarray(episodes.values[i, :length], np.float32),
        }
        if episodes.memory.shape[-1]:
            inside["memory"] = np.asarray(episodes.memory[i, : length + 1], np.float32)
        for name, values in episodes.activations.items():
            inside[ACTIVATION + name] = values[i, :length]
        recorded.append(
            RecordedEpisode(
                Trajectory(
                    episodes.observations[i, : length + 1],
                    episodes.actions[i, :length],
                    np.asarray(episodes.rewards[i, :length], np.float64),
                    bool(episodes.terminated[i]),
                ),
                truncated=bool(episodes.truncated[i]),
                policy=policy,
                level_seed=int(episodes.levels[i]),
                states={name: values[i, : length + 1] for name, values in episodes.states.items()},
                cause=episodes.causes[i],
                inside=inside,
                env_states=list(episodes.env_states[i][: length + 1]) if episodes.env_states else (),
            )
        )
    return recorded


def record_inside(
    agent: Agent,
    batch: EnvBatch,
    levels: Sequence[int],
    folder: Path | str,
    *,
    acting: Mapping[str, float] | None = None,
    epsilon: float = 0.15,
    seed: int = 0,
    max_steps: int | None = None,
    keep: Sequence[str] = (),
    keep_states: bool = False,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Record one episode of each level, with everything that goes on inside the agent.

    An interrupted recording resumes bit for bit.

    Args:
        agent: the agent.
        batch: copies of the environment, which are played together.
        levels: seeds of the levels.
        folder: the recording's.
        acting: share of the episodes by how actions are chosen, for example ``{"greedy": 0.5, "epsilon": 0.5}``; default: greedy.
        epsilon: share of random actions of ``epsilon``.
        seed: seeds the random actions.
        max_steps: cuts longer episodes.
        keep: layers whose outputs are kept.
        keep_states: whether to keep the environment's state at each observation.
        watch: called after each episode with those recorded so far and in total.

    Raises:
        SettingError: the folder holds another recording or something else, or a value is invalid.
    """
    plan = InsidePlan(
        batch.name, levels, acting or {"greedy": 1.0}, epsilon, seed, batch.n, max_steps, keep, keep_states
    )
    return write_blocks(plan, agent, folder, lambda blocks: (plan.play(agent, batch, block) for block in blocks), watch)


Played = Callable[[Sequence[Block]], Iterator[list[RecordedEpisode]]]
"""Plays blocks, in their order."""


def write_blocks(
    plan: InsidePlan,
    agent: Agent,
    folder: Path | str,
    played: Played,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Record the blocks of ``plan`` that ``folder`` lacks, as ``played`` plays them. See `record_inside`."""
    if missing := [name for name in plan.keep if name not in agent.layers]:
        raise SettingError(f"layers has {missing[0]!r}; the agent's layers are {', '.join(agent.layers) or 'none'}.")
    writer = RecordingWriter(folder, agent.observation_space, agent.action_space, plan.about(agent), plan.gamma)
    done = len(Recording(folder).lengths)
    rest = [block for block in plan.blocks() if block.first + len(block.levels) > done]
    for block, episodes in zip(rest, played(rest), strict=True):
        for number, episode in enumerate(episodes, block.first):
            if number >= done:
                writer.add(episode)
                watch(number + 1, len(plan.levels))
    writer.finish()
    return Recording(folder)
