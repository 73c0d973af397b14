"""Read recordings of what happens inside an agent: as `Episodes`, or windows of them at random.

The files are those of `rlhf_ray.data.recordings`. Levels are split into train, validation and test by a hash of their seeds, so a
level is in one split only, in every recording.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes, WindowNumbers
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import Array, BoolArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording, arrays_of
from rlhf_ray.data.transitions import ACTIVATION, GAMMA, STATE, RecordedEpisode, StateBlobs
from rlhf_ray.envs.batch import EnvBatch

Split = Literal["train", "validation", "test"]

SHARES: Mapping[str, float] = {"train": 0.7, "validation": 0.15, "test": 0.15}
"""The share of levels of each split."""


def split_of(level: int) -> str:
    """Return the split of a level: train, validation or test."""
    place = int.from_bytes(hashlib.sha256(str(int(level)).encode()).digest()[:8], "big") / 2**64
    below = 0.0
    for name, share in SHARES.items():
        below += share
        if place < below:
            return name
    return name


def load_episodes(
    folder: Path | str,
    *,
    split: Split | None = None,
    most: int | None = None,
    frames: bool = True,
    agent: Agent | None = None,
) -> Episodes:
    """Load recorded episodes, padded to the longest.

    Args:
        folder: of a recording with an agent's internals.
        split: only episodes whose level is in this split.
        most: the first ones; None for all.
        frames: whether to load observations; without, they have the shape ``[n, T + 1, 0]``.
        agent: the agent that the recording has to be of.

    Returns:
        The episodes. Their ``env_states`` are read from the files when asked for.

    Raises:
        SettingError: it is no such recording, or one of another agent, or there is no episode in this split.
    """
    chunks = _Chunks(_of_agent(folder, agent))
    episodes = np.array(_picked(chunks.recording, split)[:most], np.int64)
    inside = [name for name in chunks.recording.columns if name.startswith((STATE, ACTIVATION))]
    names = [name for name in (*_STEPS, *inside) if frames or name != "observation"]
    loaded = chunks.episodes(episodes, np.ones(len(episodes), bool), int(episodes[:, 2].max()), names)
    states = [
        StateBlobs(chunks.table(number)["env_state"], first, length + 1)
        for number, first, length in episodes.tolist()
        if "env_state" in chunks.table(number).column_names
    ]
    return replace(loaded, env_states=states)


class _Chunks:
    """The chunks of a recording, each read once; the files are memory-mapped."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self._tables: dict[int, Any] = {}
        self._rows: dict[int, dict[str, Array]] = {}

    def table(self, number: int) -> Any:
        """Return a chunk as an Arrow table."""
        if number not in self._tables:
            self._tables[number] = self.recording.table(self.recording.chunks[number])
        return self._tables[number]

    def rows(self, number: int) -> dict[str, Array]:
        """Return a chunk's columns."""
        if number not in self._rows:
            self._rows[number] = arrays_of(self.table(number))
        return self._rows[number]

    def episodes(self, parts: IntArray, whole: BoolArray, steps: int, names: Sequence[str]) -> Episodes:
        """Copy parts of episodes, padded to ``steps``.

        Args:
            parts: chunk, first row and number of steps of each, ``[n, 3]``.
            whole: whether a part reaches its episode's end, ``[n]``.
            steps: at least the longest part's.
            names: the columns to copy.
        """
        n, example = len(parts), self.rows(int(parts[0, 0]))
        columns = {
            name: np.zeros((n, steps + _has_final(name), *example[name].shape[1:]), example[name].dtype)
            for name in names
            if name in example
        }
        ends: dict[str, Array] = {name: np.zeros(n, bool) for name in ("terminated", "truncated")}
        levels, causes = np.zeros(n, np.int64), [""] * n
        for i, (number, first, count) in enumerate(parts.tolist()):
            rows, last = self.rows(number), first + count - 1
            for name, padded in columns.items():
                if name in rows:
                    size = count + _has_final(name)
                    padded[i, :size] = rows[name][first : first + size]
            levels[i] = rows["level_seed"][last]
            if whole[i]:
                for name, ended in ends.items():
                    ended[i] = rows[name][last]
                causes[i] = str(rows["cause"][last]) if "cause" in rows else ""

        def named(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): of for name, of in columns.items() if name.startswith(prefix)}

        return Episodes(
            columns.get("observation", np.zeros((n, steps + 1, 0), np.uint8)),
            columns["action"],
            columns["logits"],
            columns["value"],
            columns.get("memory", np.zeros((n, steps + 1, 0), np.float32)),
            columns["reward"],
            parts[:, 2].copy(),
            ends["terminated"],
            ends["truncated"],
            causes,
            levels,
            named(STATE),
            named(ACTIVATION),
        )


_STEPS = ("observation", "action", "logits", "value", "memory", "reward")


def _has_final(name: str) -> bool:
    """Whether a column has a value at the final observation too."""
    return name in ("observation", "memory") or name.startswith(STATE)


def _of_agent(folder: Path | str, agent: Agent | None) -> Recording:
    """Open the recording with the internals of ``agent``, or of any agent."""
    recording = Recording(folder)
    if "agent" not in recording.about:
        raise SettingError(f"{folder} has no agent's internals; record it with `rlhf-ray record --inside`.")
    if agent is not None and recording.about["agent"] != agent.digest:
        raise SettingError(
            f"{folder} is a recording of the agent {recording.about['agent']}, not of {agent.name} ({agent.digest}): record this "
            "agent, to another folder."
        )
    return recording


def _picked(recording: Recording, split: str | None) -> list[tuple[int, int, int]]:
    """Return chunk, first row and steps of each episode in ``split``."""
    if split is not None and split not in SHARES:
        raise SettingError(f"split is {split!r}; choose from {', '.join(SHARES)}.")
    picked = []
    for number, chunk in enumerate(recording.chunks):
        first = 0
        for length, level in zip(chunk["lengths"], chunk["levels"], strict=True):
            if split in (None, split_of(level)):
                picked.append((number, first, length))
            first += length + 1
    if not picked:
        raise SettingError(
            f"{recording.path} has no episode"
            + (f" in the split {split!r} yet; record more episodes." if split else " yet; continue the recording.")
        )
    return picked


class Windows(WindowNumbers):
    """Windows of consecutive observations of recorded episodes, at random access. The files are memory-mapped.

    A window begins where an episode has that many observations left; an episode with fewer has one window, with padding after its
    end. Windows never cross episodes.

    Args:
        folder: of a recording with an agent's internals.
        length: observations of a window, at least 2.
        split: only windows of levels in this split.
        agent: the agent that the recording has to be of.

    Raises:
        SettingError: as for `load_episodes`, or ``length`` is below 2.
    """

    def __init__(self, folder: Path | str, length: int, *, split: Split | None = None, agent: Agent | None = None):
        if length < 2:
            raise SettingError(f"length is {length}; a window has at least 2 observations.")
        self._chunks = _Chunks(_of_agent(folder, agent))
        self._episodes = np.array(_picked(self._chunks.recording, split), np.int64)
        super().__init__(self._episodes[:, 2], length)

    def __getitem__(self, numbers: Sequence[int] | IntArray) -> Episodes:
        """Return the windows with these numbers, as episodes of at most ``length - 1`` steps. Copies."""
        starts = self.starts(numbers)
        chunk, first, steps = self._episodes[starts.rows].T
        counts = np.minimum(steps - starts.steps, self.length - 1)
        parts = np.stack([chunk, first + starts.steps, counts], 1)
        return self._chunks.episodes(parts, starts.steps + counts == steps, self.length - 1, _STEPS)


ACTING = ("greedy", "epsilon", "sampled")
"""How actions are chosen: the most likely; that, but with probability epsilon a uniformly random one; drawn from the policy."""


@dataclass(frozen=True)
class Block:
    """Episodes that are played together: their numbers in the recording depend on nothing else."""

    first: int  # number of its first episode in the recording
    acting: str  # one of `ACTING`
    levels: tuple[int, ...]  # their levels


@dataclass(frozen=True)
class InsidePlan:
    """What to record of an agent: see `record_inside`. The episodes depend on nothing else.

    ``copies`` episodes are played together; ``gamma`` is the discount factor of the return that normalises rewards.

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
        left = len(self.levels) - sum(quota.values())
        for name in sorted(wanted, key=lambda each: quota[each] - wanted[each])[:left]:
            quota[name] += 1
        blocks: list[Block] = []
        played: Counter[str] = Counter()
        first = 0
        while first < len(self.levels):
            unfinished = (each for each in quota if played[each] < quota[each])
            name = min(unfinished, key=lambda each: played[each] / quota[each])
            count = min(self.copies, quota[name] - played[name])
            blocks.append(Block(first, name, tuple(map(int, self.levels[first : first + count]))))
            played[name] += count
            first += count
        return blocks

    def play(self, agent: Agent, batch: EnvBatch, block: Block) -> list[RecordedEpisode]:
        """Play the episodes of a block. ``batch`` has `copies` copies, so that floats come out the same everywhere."""
        assert batch.n == self.copies, (batch.n, self.copies)
        numbers, epsilon = (
            range(block.first, block.first + len(block.levels)),
            self.epsilon * (block.acting == "epsilon"),
        )
        episodes = play(
            agent,
            batch,
            block.levels,
            greedy=block.acting != "sampled",
            epsilon=epsilon,
            seed=self.seed,
            indices=numbers,
            max_steps=self.max_steps,
            keep=tuple(self.keep),
            keep_states=self.keep_states,
        )
        return [_to_recorded(episodes, i, block.acting) for i in range(len(episodes))]


def _to_recorded(episodes: Episodes, i: int, policy: str) -> RecordedEpisode:
    """Convert a whole episode to one of a recording."""
    length = int(episodes.lengths[i])
    inside: dict[str, Array] = {"logits": episodes.logits[i, :length], "value": episodes.values[i, :length]}
    if episodes.memory.shape[-1]:
        inside["memory"] = episodes.memory[i, : length + 1]
    inside = {name: np.asarray(values, np.float32) for name, values in inside.items()}
    inside |= {ACTIVATION + name: values[i, :length] for name, values in episodes.activations.items()}
    seen, actions = episodes.observations[i, : length + 1], episodes.actions[i, :length]
    rewards = np.asarray(episodes.rewards[i, :length], np.float64)
    return RecordedEpisode(
        Trajectory(seen, actions, rewards, bool(episodes.terminated[i])),
        truncated=bool(episodes.truncated[i]),
        policy=policy,
        level_seed=int(episodes.levels[i]),
        states={name: values[i, : length + 1] for name, values in episodes.states.items()},
        cause=episodes.causes[i],
        inside=inside,
        env_states=list(episodes.env_states[i][: length + 1]) if episodes.env_states else (),
    )


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


def write_blocks(
    plan: InsidePlan,
    agent: Agent,
    folder: Path | str,
    played: Callable[[Sequence[Block]], Iterator[list[RecordedEpisode]]],
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Record the blocks of ``plan`` that ``folder`` lacks, as ``played`` plays them, in their order. See `record_inside`."""
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
