"""Levels: base of the worlds made for asking. A level is a seed; copies are rows of one numpy array, stepped together."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import BatchStep

CELLS = 8
"""Side of a picture in cells."""
CELL = 2
"""Side of a cell in pixels."""
SIDE = CELLS * CELL
LARGE = 16
"""Side of a pixel in pictures for people."""
TIMEOUT = "timeout"
"""The cause of an end that truncates instead of terminating."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class LevelBatch(ABC):
    """``n`` copies of a world of 8 x 8 visible cells: an `rlhf_ray.envs.batch.EnvBatch`, in numpy.

    A copy's whole state is one row of the structured array ``state``: the level, the step, and the world's own fields. So a copy's
    course depends on its level, its actions and its edits, and on nothing else: no copy influences another.

    * Observations: uint8 [n, 16, 16, 3], 2 x 2 pixels per cell. Actions: integers [n]. Rewards: float32 [n].
    * An episode that reaches ``max_episode_steps`` is truncated, with cause "timeout". All other causes terminate.

    Args:
        n: number of copies.
        fields: of ``state``, as numpy describes them.
        draws: random numbers that a level takes.
        max_episode_steps: time limit of an episode.
        **options: the world's own, which its states remember.
    """

    name: str
    version: ClassVar[int] = 1
    """Of the states; a change of their layout or meaning increases it."""
    action_names: Sequence[str]
    causes: ClassVar[Sequence[str]]
    """Why episodes end, besides the time limit."""
    edits: Mapping[str, str]
    kinds: ClassVar[Mapping[str, tuple[Any, ...]]]
    """What a cell can show, with its colours ``[2, 2, 3]`` or ``[3]``; its codes are their order."""

    def __init__(self, n: int, fields: list[tuple[Any, ...]], draws: int, max_episode_steps: int, **options: Any):
        if n < 1:
            raise SettingError(f"The number of copies of {self.name} is {n}; it must be at least 1.")
        if max_episode_steps < 1:
            raise SettingError(f"max_episode_steps of {self.name} is {max_episode_steps}; it must be at least 1.")
        self.n, self.max_episode_steps, self._draws = n, max_episode_steps, draws
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(self.action_names))
        common = [("level", "<u8"), ("step", "<i4"), ("end", "i1")]
        self.state = np.zeros(n, np.dtype([*common, *fields]))
        self._all_causes = ("", *self.causes, TIMEOUT)
        self._timeout = len(self._all_causes) - 1
        self._patterns = np.stack(
            [np.broadcast_to(np.array(colours, np.uint8), (CELL, CELL, 3)) for colours in self.kinds.values()]
        )
        about = {"max_episode_steps": max_episode_steps, **options}
        self._header = f"{self.name} {self.version} {json.dumps(about, sort_keys=True)}\n".encode()
        self.start(np.ones(n, bool), np.arange(n))

    # What a world defines.

    @abstractmethod
    def draw(self, state: Array, random: FloatArray) -> None:
        """Fill a level's fields of ``state`` (otherwise zeros) from ``random``, uniform in [0, 1), ``[n, draws]``."""

    @abstractmethod
    def act(self, state: Array, actions: IntArray) -> tuple[FloatArray, IntArray]:
        """Step ``state`` in place; return rewards and causes of ends, as indices of `causes` plus 1; 0: not ended."""

    @abstractmethod
    def codes(self, state: Array) -> IntArray:
        """Return what each cell shows, ``[n, 8, 8]``: codes of `kinds`."""

    @abstractmethod
    def concepts(self, state: Array) -> dict[str, Array]:
        """See `EnvBatch.describe`."""

    @abstractmethod
    def plan(self, state: Array) -> BoolArray:
        """Return the actions of an expert, ``[n, actions]``: True for each of its best ones."""

    # What all worlds share.

    def reset(self, levels: Sequence[int]) -> Array:
        """See `EnvBatch.reset`.

        Raises:
            SettingError: not as many levels as copies, or a negative one.
        """
        if len(levels) != self.n:
            raise SettingError(f"{len(levels)} levels are given for {self.n} copies of {self.name}; give one for each.")
        self.start(np.ones(self.n, bool), levels)
        return self.observe()

    def start(self, rows: BoolArray, levels: Sequence[int] | IntArray) -> None:
        """Start an episode in the copies ``rows`` ``[n]``, one level each."""
        if min(levels, default=0) < 0:
            raise SettingError(f"A level of {self.name} is {min(levels)}; levels are seeds, at least 0.")
        seeds = np.array(levels, np.uint64)
        fresh = np.zeros(len(seeds), self.state.dtype)
        fresh["level"] = seeds
        self.draw(fresh, uniform(seeds, self._draws))
        self.state[rows] = fresh

    def step(self, actions: Array) -> BatchStep:
        """See `EnvBatch.step`."""
        rewards = self.advance(actions)
        return BatchStep(self.observe(), rewards, *self.ends(), self.ended_by())

    def advance(self, actions: Array) -> FloatArray:
        """Step all copies whose episode has not ended; return rewards ``[n]``.

        Raises:
            ValueError: the actions have another shape or are out of range.
        """
        actions = np.asarray(actions)
        if actions.shape != (self.n,) or actions.min() < 0 or actions.max() >= len(self.action_names):
            raise ValueError(
                f"Actions of {self.name} are {actions!r}; they must be {self.n} integers in 0..{len(self.action_names) - 1}."
            )
        going = self.state["end"] == 0
        if going.all():
            return self._stepped(self.state, actions)
        rewards = np.zeros(self.n, np.float32)
        if going.any():
            part = self.state[going]
            rewards[going] = self._stepped(part, actions[going])
            self.state[going] = part
        return rewards

    def _stepped(self, state: Array, actions: IntArray) -> FloatArray:
        state["step"] += 1
        rewards, ends = self.act(state, actions)
        state["end"] = np.where((ends == 0) & (state["step"] >= self.max_episode_steps), self._timeout, ends)
        return rewards.astype(np.float32)

    def ends(self) -> tuple[BoolArray, BoolArray]:
        """Return which episodes have terminated, and which were truncated, ``[n]`` each."""
        ends = self.state["end"]
        truncated: BoolArray = ends == self._timeout
        return (ends > 0) & ~truncated, truncated

    def ended_by(self) -> list[str]:
        """Return why each episode ended, ``[n]``; empty if it has not ended."""
        return [self._all_causes[end] for end in self.state["end"].tolist()]

    def observe(self) -> Array:
        """Return the current observations, uint8 ``[n, 16, 16, 3]``."""
        painted = self._patterns[self.codes(self.state)]
        frames: Array = painted.transpose(0, 1, 3, 2, 4, 5).reshape(self.n, SIDE, SIDE, 3)
        return frames

    def states(self) -> list[bytes]:
        """See `EnvBatch.states`. A state is a line of text (name, version, options) and a row of ``state``."""
        raw, size = self.state.tobytes(), self.state.itemsize
        return [self._header + raw[i * size : (i + 1) * size] for i in range(self.n)]

    def restore(self, states: Sequence[bytes]) -> Array:
        """See `EnvBatch.restore`.

        Raises:
            SettingError: not as many states as copies, or a state of another world, version or level length.
        """
        if len(states) != self.n:
            raise SettingError(f"{len(states)} states are given for {self.n} copies of {self.name}; give one for each.")
        size = self.state.itemsize
        for state in states:
            if not state.startswith(self._header) or len(state) != len(self._header) + size:
                head = bytes(state).partition(b"\n")[0][:120].decode(errors="replace")
                raise SettingError(
                    f"A state is of {head!r}, but this is {self._header.decode().strip()!r}: make the environment with the "
                    "options that the state was saved with."
                )
        raw = b"".join(state[-size:] for state in states)
        self.state = np.frombuffer(raw, self.state.dtype).copy()
        return self.observe()

    def describe(self) -> dict[str, Array]:
        """See `EnvBatch.describe`."""
        return self.concepts(self.state)

    def masks(self) -> dict[str, BoolArray]:
        """See `EnvBatch.masks`. Each pixel belongs to exactly one kind."""
        codes = self.codes(self.state).repeat(CELL, 1).repeat(CELL, 2)
        return {kind: codes == code for code, kind in enumerate(self.kinds)}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        """See `EnvBatch.edit`.

        Raises:
            SettingError: the world has no such edit.
        """
        if name not in self.edits:
            raise SettingError(f"{self.name} has no edit {name!r}; choose from {', '.join(self.edits)}.")
        chosen = (self.state["end"] == 0) & (True if rows is None else np.asarray(rows, bool))
        part = self.state[chosen]
        getattr(self, f"_edit_{name}")(part)
        self.state[chosen] = part
        return self.observe()

    def expert(self, rng: np.random.Generator) -> IntArray:
        """Return an action of a scripted player for each copy, ``[n]``; ties are broken at random."""
        best = self.plan(self.state)
        actions: IntArray = (best * rng.uniform(0.5, 1.0, best.shape)).argmax(1)
        return actions

    def render(self) -> Array:
        """Return pictures for people, uint8 ``[n, 256, 256, 3]``."""
        large: Array = self.observe().repeat(LARGE, 1).repeat(LARGE, 2)
        return large

    def close(self) -> None:  # noqa: B027 - there is nothing to free, in any world
        """See `EnvBatch.close`."""


def uniform(seeds: Array, count: int) -> FloatArray:
    """Draw ``[n, count]`` uniform numbers in [0, 1) for each seed (SplitMix64, Steele et al. 2014), alike on all machines."""
    with np.errstate(over="ignore"):
        base = _mixed(seeds.astype(np.uint64) + _GOLDEN)
        numbers = _mixed(base[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    drawn: FloatArray = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def _mixed(numbers: Array) -> Array:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = numbers ^ (numbers >> np.uint64(31))
    return mixed
