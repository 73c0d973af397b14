"""Effects: what an intervention or an edited level changes in what an agent does, against the same episodes without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean


def causes_of(episodes: Episodes) -> list[str]:
    """Return each episode's cause of its end; where the environment tells none, how it ended: terminated, truncated or cut."""
    ends = np.where(episodes.terminated, "terminated", np.where(episodes.truncated, "truncated", "cut"))
    return [cause or str(end) for cause, end in zip(episodes.causes, ends, strict=True)]


@dataclass(frozen=True)
class Change:
    """A mean before and after, and the difference with its interval: paired by episode, each level weighted equally."""

    before: float
    after: float
    difference: MeanEstimate

    @classmethod
    def of(cls, before: FloatArray, after: FloatArray, levels: Any, tests: int = 1) -> Change:
        """Compare measurements ``[n]`` of the same episodes; ``tests``: see `estimate_mean`."""
        _, level = np.unique(np.asarray(levels), return_inverse=True)
        first, second = (float((np.bincount(level, of) / np.bincount(level)).mean()) for of in (before, after))
        return cls(first, second, estimate_mean(np.subtract(after, before), levels, tests=tests))


@dataclass(frozen=True)
class CausalEffect:
    """The difference between two conditions on the same episodes.

    Attributes:
        episodes: number of episodes.
        levels: number of distinct levels among them, which intervals are over.
        returns: true return.
        outcomes: share of episodes by cause of ending.
        actions: share of each Discrete action, or the mean of each element of a Box action, over an episode's steps.
        lengths: steps.
        acts: share of the steps, of those that both episodes have, with another action; Box: mean distance of the actions, in
            standard deviations of those before.
    """

    episodes: int
    levels: int
    returns: Change
    outcomes: Mapping[str, Change]
    actions: Mapping[str, Change]
    lengths: Change
    acts: MeanEstimate

    @property
    def largest_outcome(self) -> tuple[str, Change]:
        """The cause of ending whose share changes most."""
        return max(self.outcomes.items(), key=lambda outcome: abs(outcome[1].difference.mean))


def effect(
    before: Episodes,
    after: Episodes,
    space: gym.Space[Any],
    names: Sequence[str] = (),
    groups: IntArray | None = None,
) -> CausalEffect:
    """Compare the same episodes under two conditions.

    Args:
        before: episodes under the first condition.
        after: the same under the second, row by row.
        space: the environment's action space.
        names: of Discrete actions.
        groups: which levels are the same, ``[n]`` (`rlhf_ray.interpret.agent.levels.contents`); None: levels of one seed.
    """
    levels = before.levels if groups is None else groups

    def change(first: FloatArray, second: FloatArray) -> Change:
        return Change.of(first, second, levels)

    causes = [np.array(causes_of(episodes)) for episodes in (before, after)]
    acted = [action_shares(episodes, space) for episodes in (before, after)]
    called = list(names) if len(names) == acted[0].shape[1] else [str(at) for at in range(acted[0].shape[1])]
    return CausalEffect(
        len(before),
        len(np.unique(levels)),
        change(before.returns, after.returns),
        {
            name: change((causes[0] == name).astype(float), (causes[1] == name).astype(float))
            for name in sorted({*causes[0], *causes[1]})
        },
        {name: change(acted[0][:, at], acted[1][:, at]) for at, name in enumerate(called)},
        change(before.lengths.astype(float), after.lengths.astype(float)),
        estimate_mean(acts_otherwise(before, after, space), levels),
    )


def acts_otherwise(before: Episodes, after: Episodes, space: gym.Space[Any]) -> FloatArray:
    """Return `CausalEffect.acts` of each episode, ``[n]``."""
    steps = min(before.actions.shape[1], after.actions.shape[1])
    first, second = (of.actions[:, :steps].reshape(len(of), steps, -1).astype(np.float64) for of in (before, after))
    both = before.real[:, :steps] & after.real[:, :steps]
    if isinstance(space, gym.spaces.Discrete):
        differs = (first != second).any(2).astype(np.float64)
    else:
        differs = (np.abs(first - second) / np.maximum(first[before.real[:, :steps]].std(0), 1e-6)).mean(2)
    found: FloatArray = (differs * both).sum(1) / np.maximum(both.sum(1), 1)
    return found


def action_shares(episodes: Episodes, space: gym.Space[Any]) -> FloatArray:
    """Return how often each episode took each Discrete action, or its mean action, ``[n, actions]``."""
    acted = episodes.actions.reshape(*episodes.actions.shape[:2], -1).astype(np.float64)
    if isinstance(space, gym.spaces.Discrete):
        acted = (acted == np.arange(int(space.n))).astype(np.float64)
    total = (acted * episodes.real[..., None]).sum(1)
    shares: FloatArray = total / np.maximum(episodes.lengths, 1)[:, None]
    return shares
