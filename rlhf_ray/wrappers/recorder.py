"""Recorder: the recent steps of parallel environments, as trajectories, and the true returns of their episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
from rlhf_ray.labelling.films import Film, film
from rlhf_ray.settings.fragments import ResolvedFragments

_NO_STEP = -2
"""Step number of a row that is not a step (a reset); it joins no trajectory."""


class LatestStep(NamedTuple):
    """What the reward model got of a step, and the rewards that were returned, ``[n]``."""

    before: Array
    actions: Array
    after: Array
    rewards: FloatArray


@dataclass(frozen=True)
class _Row:
    """One step of every environment. ``numbers``: steps of the episode before this one, or `_NO_STEP`. ``frames``: images."""

    observations: Array
    actions: Array
    rewards: FloatArray
    terminated: BoolArray
    next_observations: Array
    numbers: IntArray
    frames: tuple[Array | None, Array | None]


class Recorder:
    """Groups steps into trajectories. A trajectory never crosses the end of an episode, in any autoreset mode.

    Args:
        copies: number of environments stepped together.
        autoreset: their autoreset mode (for a single environment: `AutoresetMode.DISABLED`).
    """

    def __init__(self, copies: int, autoreset: AutoresetMode = AutoresetMode.DISABLED):
        self.copies, self.autoreset = copies, autoreset
        self.returns = np.zeros(copies)
        """True return of each environment's current episode so far, ``[copies]`` float64."""
        self.lengths = np.zeros(copies, np.int64)
        """Steps of each environment's current episode so far, ``[copies]`` int64."""
        self.over = np.ones(copies, bool)
        """Environments whose episode has ended and that are not reset yet, ``[copies]`` bool."""
        self._rows: list[_Row] = []
        self._ended_lengths: list[int] = []

    def __len__(self) -> int:
        """Number of recorded steps per environment."""
        return len(self._rows)

    def begin(self, which: BoolArray | None = None) -> None:
        """Start a new episode in the environments of the mask ``which``, ``[copies]`` bool; None: all."""
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
        """Record one step of every environment. Keeps references to the arrays, no copies.

        Args:
            observations: observations before the step, ``[copies, *observation_shape]``.
            actions: ``[copies, *action_shape]``.
            rewards: true rewards, ``[copies]``.
            terminated: ``[copies]`` bool.
            truncated: ``[copies]`` bool.
            next_observations: observations after the step, before any reset, ``[copies, *observation_shape]``.
            keep: whether to record the step for trajectories; False only counts it.
            frames: for a single environment, the images for people before and after the step; None if not rendered.

        Returns:
            A mask ``[copies]`` of the real steps (with `AutoresetMode.NEXT_STEP`, a reset replaces one), and if episodes ended,
            their mask, true returns and lengths, each ``[copies]``; otherwise None.
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
        """Return and clear the recorded trajectories, environment by environment, and the lengths of ended episodes."""
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
        """Clear the recorded steps."""
        self._rows, self._ended_lengths = [], []


def _trajectory(rows: list[_Row], copy: int) -> Trajectory:
    """The trajectory of one environment from consecutive ``rows``."""
    return Trajectory(
        observations=np.stack([row.observations[copy] for row in rows] + [rows[-1].next_observations[copy]]),
        actions=np.stack([row.actions[copy] for row in rows]),
        rewards=np.array([row.rewards[copy] for row in rows], np.float64),
        terminated=bool(rows[-1].terminated[copy]),
        start=int(rows[0].numbers[copy]),
        frames=[row.frames[0] for row in rows] + [rows[-1].frames[1]],
    )


def fragments_of(
    trajectories: list[Trajectory], settings: ResolvedFragments, version: int, rng: np.random.Generator
) -> Fragments | None:
    """Cut fragments so that each step is in two of them on average; None if all trajectories are too short."""
    return cut_fragments(
        trajectories,
        length=settings.length,
        count=min(settings.pool, max(2, 2 * sum(map(len, trajectories)) // settings.length)),
        start_share=settings.start_share,
        policy_version=version,
        rng=rng,
    )


def filmed_fragments(
    trajectories: list[Trajectory], length: int, version: int
) -> tuple[Fragments | None, tuple[Film, ...]]:
    """Return the completely rendered fragments of ``length`` steps, and their films."""
    cuts: list[tuple[Trajectory, int]] = []
    for trajectory in trajectories:
        start = 0
        while start + length < len(trajectory.frames):
            drawn = all(frame is not None for frame in trajectory.frames[start : start + length + 1])
            if drawn:
                cuts.append((trajectory, start))
            start += length + 1 if drawn else 1
    if not cuts:
        return None, ()
    fragments = Fragments.concatenate([of.window(start, length, version) for of, start in cuts])
    films = tuple(
        film(name, [frame for frame in of.frames[start : start + length + 1] if frame is not None], pixelated=False)
        for name, (of, start) in zip(fragments.ids(), cuts, strict=True)
    )
    return fragments, films
