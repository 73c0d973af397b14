"""Recorder: the last steps of some copies of an environment, which trajectories are made of, and their episodes' true returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Trajectory

_NO_STEP = -2
"""Stands for the number of a step that is none: nothing follows it, and it follows nothing."""


@dataclass(frozen=True)
class _Row:
    """One step of every copy. ``numbers``: how many steps the episode had taken before, or `_NO_STEP`; ``frames``: pictures."""

    observations: Array
    actions: Array
    rewards: FloatArray
    terminated: BoolArray
    next_observations: Array
    numbers: IntArray
    frames: tuple[Array | None, Array | None]


class Recorder:
    """Knows which steps belong together. A trajectory never crosses the end of an episode, however episodes are begun.

    Args:
        copies: of the environment, stepped together.
        autoreset: how they begin their next episodes (a single environment: `AutoresetMode.DISABLED`).
    """

    def __init__(self, copies: int, autoreset: AutoresetMode = AutoresetMode.DISABLED):
        self.copies, self.autoreset = copies, autoreset
        self.returns = np.zeros(copies)
        """The true return of each copy's episode so far, ``[copies]``."""
        self.lengths = np.zeros(copies, np.int64)
        """Its steps so far."""
        self.over = np.ones(copies, bool)
        """Which copies' episodes have ended, so that their next step is none until they are begun anew."""
        self._rows: list[_Row] = []
        self._ended_lengths: list[int] = []

    def __len__(self) -> int:
        """How many steps of each copy are held."""
        return len(self._rows)

    def begin(self, which: BoolArray | None = None) -> None:
        """These copies (None: all) are at the beginning of an episode."""
        which = np.ones(self.copies, bool) if which is None else which
        self.returns[which], self.lengths[which], self.over[which] = 0.0, 0, False

    def add(
        self,
        observations: Array,
        actions: Array,
        rewards: FloatArray,
        terminated: BoolArray,
        truncated: BoolArray,
        next_observations: Array,
        keep: bool = True,
        frames: tuple[Array | None, Array | None] = (None, None),
    ) -> tuple[BoolArray, tuple[BoolArray, FloatArray, IntArray] | None]:
        """All copies took a step. The arrays are kept, not copied.

        Args:
            observations: before the step, ``[copies, *observation_shape]``.
            actions: ``[copies, *action_shape]``.
            rewards: the true ones, ``[copies]``.
            terminated: ``[copies]``.
            truncated: ``[copies]``.
            next_observations: after the step, before any reset.
            keep: whether trajectories are wanted of it; false only counts.
            frames: of a single copy, pictures for people before and after the step, as far as they were drawn.

        Returns:
            Which of the steps are steps (`AutoresetMode.NEXT_STEP` resets in the place of one), and, where episodes ended, which,
            their true returns and their lengths.
        """
        real = ~self.over
        numbers = np.where(real, self.lengths, _NO_STEP)
        if keep:
            self._rows.append(_Row(observations, actions, rewards, terminated, next_observations, numbers, frames))
        self.returns += np.where(real, rewards, 0.0)
        self.lengths += real
        ended = real & (terminated | truncated)
        episodes = None
        if ended.any():
            episodes = (ended, np.where(ended, self.returns, 0.0), np.where(ended, self.lengths, 0))
            self._ended_lengths += self.lengths[ended].tolist()
        if self.autoreset is AutoresetMode.SAME_STEP:
            self.begin(ended)
        else:
            if self.autoreset is AutoresetMode.NEXT_STEP:
                self.begin(~real)
            self.over |= ended
        return real, episodes

    def take(self) -> tuple[list[Trajectory], tuple[int, ...]]:
        """The trajectories of the steps held, copy after copy, and the lengths of the episodes that ended; both are forgotten."""
        rows, lengths = self._rows, tuple(self._ended_lengths)
        self.forget()
        trajectories = []
        for copy in range(self.copies):
            numbers = np.array([row.numbers[copy] for row in rows], np.int64)
            breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
            for steps in np.split(np.arange(len(rows)), breaks):
                if len(steps) and numbers[steps[0]] != _NO_STEP:
                    trajectories.append(_trajectory([rows[i] for i in steps], copy))
        return trajectories, lengths

    def forget(self) -> None:
        """Hold no steps."""
        self._rows, self._ended_lengths = [], []


def _trajectory(rows: list[_Row], copy: int) -> Trajectory:
    """The steps of one copy in ``rows``, which follow each other."""
    return Trajectory(
        observations=np.stack([row.observations[copy] for row in rows] + [rows[-1].next_observations[copy]]),
        actions=np.stack([row.actions[copy] for row in rows]),
        rewards=np.array([row.rewards[copy] for row in rows], np.float64),
        terminated=bool(rows[-1].terminated[copy]),
        start=int(rows[0].numbers[copy]),
        frames=[row.frames[0] for row in rows] + [rows[-1].frames[1]],
    )
