"""Recorder: the recent steps of parallel environments, as trajectories, and their true returns; and where their fragments go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from rlhf_ray.actors.executor import Ref
from rlhf_ray.actors.fragment_source import FragmentSource
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.labelling.films import Film, film
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport

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


class GivenFragments(FragmentSource):
    """The fragment source for training outside of this library: it takes no environment steps itself.

    Passes fragments to the pool, and tracks when there are enough to ask about, if the ring ``asks``.
    """

    def __init__(self, actors: RingActors, *, asks: bool):
        self.actors, self.asks = actors, asks
        self.env_steps = 0
        self.taken = 0
        """Environment steps the training has taken, without unseen ones."""
        self.unseen = 0
        """Environment steps taken while collecting was paused."""
        self.waited_for = False
        """Whether the training waits for the first reward version, so that no more fragments arrive before it."""
        self._sent: Ref[PoolReport] | None = None
        """Reference that is ready once the pool has stored the last fragments."""

    @property
    def share(self) -> float:
        """See `FragmentSource.share`: people can compare the first two fragments while others are still being made."""
        share = min(1.0, self.taken / self.actors.settings.fragments.initial_env_steps)
        return share if self.actors.people is not None or share == 1.0 else 0.0

    @share.setter
    def share(self, share: float) -> None:
        """Ignored: the share follows from `taken`."""

    def take(self, fragments: CutFragments, films: Sequence[Film], wait: bool) -> bool:
        """Send fragments to the pool and films to the page, and with ``wait`` wait until the pool has them; return whether sent.

        Without ``wait``, drops them while the last ones are in flight.
        """
        if self._sent is not None and not wait and not self.actors.executor.ready(self._sent):
            return False
        if self._sent is not None:
            self.actors.executor.get(self._sent)  # raises the actor's error
        if films:
            self.actors.show_made(tuple(films))
        self._sent = self.actors.pool.call(FragmentPool.add, fragments)
        if wait:
            self.actors.executor.get(self._sent)
        return True

    def check(self, report: PoolReport, env_steps: int) -> PoolReport:
        """See `FragmentSource.check`.

        Calls may reach the pool in another order than they were made, and a lost pool begins empty: what it answered to the last
        fragments knows better.

        Raises:
            SettingError: there are too few initial fragments to compare.
        """
        fragments, seen, sent = self.actors.settings.fragments, env_steps - self.unseen, self._sent
        if not self.asks or report.fragments >= 2 or seen < fragments.initial_env_steps:
            return report
        if sent is not None and not self.actors.executor.ready(sent):
            return report
        last = report if sent is None else self.actors.executor.get(sent)
        if last.fragments < 2:
            raise SettingError(
                f"fragments.length is {fragments.length}, but {seen} environment steps gave fewer than two fragments of "
                f"that length within an episode (episode lengths: {list(last.episode_lengths) or 'none ended'}): lower it."
            )
        return report

    def to_come(self) -> bool:
        """See `FragmentSource.to_come`."""
        return self.asks and not self.waited_for
