"""Effects of changes on what an agent does: against the same episodes without them, throughout and at single moments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import Agent, Hook, Sight, edits_at
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.changes import Change
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean, share_interval
from rlhf_ray.study.section import Effect

ACTIONS, RETURN, ONCE, VALUE = COLUMNS = ("actions changed", "return", "return, one moment", "value")
COPIES, ROWS = 64, 1024
"""Episodes that are played at a time; steps that are asked about at a time."""
SAME = 0.1
"""Standard deviations of a Box action's number up to which it counts as the same."""
UNDECIDED = 1e-4
"""Difference of the two largest logits up to which an agent is undecided: which of them it takes is rounding."""


def causes_of(episodes: Episodes) -> list[str]:
    """Return each episode's cause of its end; where the environment tells none, how it ended: terminated, truncated or cut."""
    ends = np.where(episodes.terminated, "terminated", np.where(episodes.truncated, "truncated", "cut"))
    return [cause or str(end) for cause, end in zip(episodes.causes, ends, strict=True)]


@dataclass(frozen=True)
class Bench:
    """Plays the same levels again and again, each time with another change.

    Attributes:
        agent: acts, greedily.
        make_batch: makes copies of its environment.
        plain: the levels without a change, with observations, and states if the environment can save them.
        groups: which levels are the same, ``[n]``: intervals are over these.
        unit: what counts as a return of 1.
        moments: single moments at which each level is changed, besides the one where the action changes most at once.
        most: steps after which episodes are cut.
    """

    agent: Agent
    make_batch: Callable[[int], EnvBatch]
    plain: Episodes
    groups: IntArray
    unit: float
    moments: int
    most: int

    def effect(self, change: Change) -> Effect:
        """Measure a change: the share of levels in which any action changes, and the changes of return and value.

        At a moment, the change is made in one step, and the episode is played on. A level's worst moment is that after which the
        most of its actions change. Without states to go back to, a world's edit is only tried at moments drawn beforehand.
        """
        acts, values = self._at_once(change)
        always = self.play(change.throughout(len(self.plain)))
        ever: BoolArray = np.asarray(self._otherwise(always).any(1) | acts.any(1))
        worst, moved = self._single(change, acts, values)
        if not change.controls:  # which are tried throughout and at once
            ever |= moved
        figures = {ACTIONS: self._share(ever), RETURN: self._mean((always.returns - self.plain.returns) / self.unit)}
        figures[ONCE] = self._mean((worst - self.plain.returns) / self.unit)
        if values.size:
            real = self.plain.real
            figures[VALUE] = self._mean((values * real).sum(1) / self.plain.lengths / self._value_spread)
        controls = [self.ever(each) for each in change.controls]
        return Effect(change.name, figures, max((share.mean for share in controls), default=self.repeated.mean))

    @cached_property
    def repeated(self) -> MeanEstimate:
        """The share of levels in which an action changes when levels are only played again, and states restored."""
        return self.ever(Change("nothing", lambda batch, seen, *_: seen, world=True))

    def play(self, how: tuple[Sight | None, tuple[Hook, ...]], rows: IntArray | None = None) -> Episodes:
        """Play the levels, or those in ``rows``, with a change."""
        levels = self.plain.levels if rows is None else self.plain.levels[rows]
        with closing(self.make_batch(min(COPIES, len(levels)))) as batch:
            return play(self.agent, batch, levels, sight=how[0], hooks=how[1], max_steps=self.most, frames=False)

    def ever(self, change: Change) -> MeanEstimate:
        """Return the share of levels in which any action changes, throughout or at once."""
        always = self.play(change.throughout(len(self.plain)))
        ever = self._otherwise(always).any(1)
        return self._share(np.asarray(ever | self._at_once(change)[0].any(1)))

    def _single(self, change: Change, acts: BoolArray, values: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Make a change at single moments; return each level's return after the worst, and whether any action changes, ``[n]``."""
        plain, count = self.plain, len(self.plain)
        spaced = np.linspace(0, 1, self.moments)[None] * (plain.lengths[:, None] - 1)
        chosen = np.concatenate([spaced.round().astype(np.int64), self._largest(acts, values)[:, None]], 1)
        rows = np.repeat(np.arange(count), chosen.shape[1])
        played = self.play(change.at(chosen.ravel(), rows), rows)
        moved = self._otherwise(played, rows).sum(1).reshape(chosen.shape)
        worst = moved.argmax(1)
        return played.returns.reshape(chosen.shape)[np.arange(count), worst], moved.any(1)

    def _largest(self, acts: BoolArray, values: FloatArray) -> IntArray:
        """Return the step of each level at which the change changes most at once, ``[n]``."""
        size = acts.astype(np.float64) if acts.size else np.zeros(self.plain.real.shape)
        if values.size:
            size = size + np.minimum(values / (self._value_spread * 100), 0.5)
        return np.asarray(np.where(self.plain.real, size, -1.0).argmax(1))

    @torch.no_grad()
    def _at_once(self, change: Change) -> tuple[BoolArray, FloatArray]:
        """Ask the agent at every recorded step what it does with the change: whether another action, and the value's change.

        Returns:
            ``[n, T]`` each; the second is empty if the world can't go back to these steps.
        """
        plain, real = self.plain, self.plain.real
        acts, values = np.zeros(real.shape, bool), np.zeros(real.shape)
        if change.world and not len(plain.env_states):
            return acts, np.zeros((len(plain), 0))
        rows, steps = np.nonzero(real)
        batch = self.make_batch(COPIES) if change.world else None
        size = COPIES if batch is not None else ROWS
        try:
            for first in range(0, len(rows), size):
                at, when = rows[first : first + size], steps[first : first + size]
                seen = plain.observations[at, when]
                if batch is not None:
                    copies = np.minimum(np.arange(batch.n), len(at) - 1)
                    seen = batch.restore([plain.env_states[at[copy]][when[copy]] for copy in copies])
                if change.sight is not None:
                    seen = change.sight(batch, seen, np.arange(len(at)), at, when)[: len(at)]
                hooks = [] if change.hook is None else [change.once or change.hook]
                edits = edits_at(hooks, when, at)
                step = self.agent.step(torch.as_tensor(seen), torch.as_tensor(plain.memory[at, when]), edits=edits)
                acts[at, when] = self._differ(step.logits.numpy(), plain.logits[at, when]) & self._decided[at, when]
                values[at, when] = np.abs(step.value.numpy() - plain.values[at, when])
        finally:
            if batch is not None:
                batch.close()
        return acts, values

    def _otherwise(self, after: Episodes, rows: IntArray | None = None) -> BoolArray:
        """Return at which steps the levels, or those in ``rows``, are acted in otherwise, ``[n, T]``; False after either's end."""
        plain = self.plain if rows is None else self.plain.select(rows)
        decided = self._decided if rows is None else self._decided[rows]
        steps = min(plain.actions.shape[1], after.actions.shape[1])
        both = plain.real[:, :steps] & after.real[:, :steps] & decided[:, :steps]
        first, second = (of.actions[:, :steps].reshape(len(of), steps, -1).astype(np.float64) for of in (plain, after))
        apart = np.abs(first - second) > (0.0 if self._tolerance is None else self._tolerance)
        return np.asarray(apart.any(2) & both)

    @cached_property
    def _decided(self) -> BoolArray:
        """Where the agent prefers one action, ``[n, T]``."""
        if not isinstance(self.agent.action_space, gym.spaces.Discrete) or self.plain.logits.shape[2] < 2:
            return self.plain.real
        best = np.sort(self.plain.logits, axis=2)
        return np.asarray(best[..., -1] - best[..., -2] > UNDECIDED)

    def _differ(self, logits: FloatArray, plain: FloatArray) -> BoolArray:
        if self._tolerance is None:
            return np.asarray(logits.argmax(1) != plain.argmax(1))
        size = logits.shape[1] // 2
        spread = np.maximum(self.plain.logits[self.plain.real][:, :size].std(0), 1e-6)
        return np.asarray((np.abs(logits - plain)[:, :size] > SAME * spread).any(1))

    @cached_property
    def _tolerance(self) -> FloatArray | None:
        if isinstance(self.agent.action_space, gym.spaces.Discrete):
            return None
        taken = self.plain.actions[self.plain.real].reshape(int(self.plain.lengths.sum()), -1).astype(np.float64)
        return np.asarray(SAME * np.maximum(taken.std(0), 1e-6))

    @cached_property
    def _value_spread(self) -> float:
        return max(float(self.plain.values[self.plain.real].std()), 1e-6)

    def _share(self, levels: BoolArray) -> MeanEstimate:
        count = len(np.unique(self.groups))
        return share_interval(estimate_mean(levels.astype(np.float64), self.groups).mean * count, count)

    def _mean(self, values: FloatArray) -> MeanEstimate:
        return estimate_mean(values, self.groups)
