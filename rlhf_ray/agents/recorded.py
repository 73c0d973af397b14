"""Read recordings of what happens inside an agent: as `Episodes`, or windows of them at random.

The files are those of `rlhf_ray.data.recordings`. Levels are split into train, validation and test by a hash of their seeds, so a
level is in one split only, in every recording.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WindowNumbers
from rlhf_ray.data.arrays import Array, BoolArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recorded_episode import ACTIVATION, STATE, StateBlobs
from rlhf_ray.data.recordings import Recording, arrays_of

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
        return Episodes(
            observations=columns.get("observation", np.zeros((n, steps + 1, 0), np.uint8)),
            actions=columns["action"],
            logits=columns["logits"],
            values=columns["value"],
            memory=columns.get("memory", np.zeros((n, steps + 1, 0), np.float32)),
            rewards=columns["reward"],
            lengths=parts[:, 2].copy(),
            terminated=ends["terminated"],
            truncated=ends["truncated"],
            causes=causes,
            levels=levels,
            states={name.removeprefix(STATE): padded for name, padded in columns.items() if name.startswith(STATE)},
            activations={
                name.removeprefix(ACTIVATION): padded for name, padded in columns.items() if name.startswith(ACTIVATION)
            },
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
