"""Transitions: single steps as arrays, with the episode and step that each one comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments, Trajectory


@dataclass(frozen=True)
class Transitions:
    """``n`` steps of an environment. Steps of one episode are adjacent and in order.

    Attributes:
        observations: ``[n, *observation_shape]``: before each step.
        actions: ``[n, *action_shape]``, as given to the environment.
        next_observations: ``[n, *observation_shape]``: after each step; the episode's own last one where it ends.
        terminated: ``[n]`` bool: whether the step terminated the episode (truncation does not count).
        rewards: ``[n]`` float64: the true reward, NaN if unknown.
        episodes: ``[n]`` int64: number of the episode. Splits are by episode.
        steps: ``[n]`` int64: steps of the episode before this one.
        columns: more arrays ``[n, …]`` by name, for example ``truncated``, ``normalised_reward``, ``level_seed``, ``policy``, and
            ``state.NAME`` for what the environment says about its own state.

    Raises:
        ValueError: the arrays differ in length.
    """

    observations: Array
    actions: Array
    next_observations: Array
    terminated: BoolArray
    rewards: FloatArray
    episodes: IntArray
    steps: IntArray
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(value) for name, value in self._arrays().items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Transitions need arrays of one length; got {lengths}.")

    def __len__(self) -> int:
        return len(self.terminated)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Transitions:
        """Return the steps at ``index`` (an integer or boolean array, or a slice): copies for arrays, views for slices."""
        own = {name: value[index] for name, value in vars(self).items() if name != "columns"}
        return Transitions(**own, columns={name: value[index] for name, value in self.columns.items()})

    def with_(self, **changes: Any) -> Transitions:
        """Return the same steps with some arrays replaced."""
        return replace(self, **changes)

    def split(self, share: float, rng: np.random.Generator) -> tuple[Transitions, Transitions]:
        """Split by episode, never by step: neighbouring frames are nearly equal.

        Args:
            share: share of the episodes in the second part (0 < share < 1). Each part gets at least one episode if there are two.
            rng: draws the episodes.

        Returns:
            Both parts.
        """
        names = np.unique(self.episodes)
        count = int(np.clip(round(share * len(names)), min(1, len(names) - 1), max(0, len(names) - 1)))
        second = np.isin(self.episodes, rng.permutation(names)[:count])
        return self[~second], self[second]

    def sample(self, most: int, rng: np.random.Generator) -> Transitions:
        """Return at most ``most`` steps drawn without replacement, in their order."""
        if len(self) <= most:
            return self
        return self[np.sort(rng.choice(len(self), most, replace=False))]

    def _arrays(self) -> dict[str, Array]:
        return {name: value for name, value in vars(self).items() if name != "columns"} | dict(self.columns)

    @staticmethod
    def concatenate(parts: Sequence[Transitions]) -> Transitions:
        """Join ``parts``, which must have the same columns. Episodes are numbered anew, so that those of two parts never mix."""
        episodes, first = [], 0
        for part in parts:
            _, numbers = np.unique(part.episodes, return_inverse=True)
            episodes.append(numbers + first)
            first += int(numbers.max()) + 1 if len(part) else 0
        names = [name for name in vars(parts[0]) if name not in ("columns", "episodes")]
        return Transitions(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
            episodes=np.concatenate(episodes).astype(np.int64),
            columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        )

    @staticmethod
    def of_fragments(fragments: Fragments) -> Transitions:
        """Convert fragments, each of which becomes one episode."""
        n, length = fragments.rewards.shape
        last = np.arange(length) == length - 1

        def flat(values: Array) -> Array:
            return values.reshape(n * length, *values.shape[2:])

        return Transitions(
            observations=flat(fragments.observations[:, :-1]),
            actions=flat(fragments.actions),
            next_observations=flat(fragments.observations[:, 1:]),
            terminated=flat(fragments.terminated[:, None] & last),
            rewards=flat(fragments.rewards),
            episodes=np.repeat(np.arange(n), length),
            steps=flat(fragments.starts[:, None] + np.arange(length)),
        )

    @staticmethod
    def of_trajectories(trajectories: Sequence[Trajectory]) -> Transitions:
        """Convert trajectories, each of which becomes one episode."""
        lengths = [len(trajectory) for trajectory in trajectories]
        terminated = [
            (np.arange(len(trajectory)) == len(trajectory) - 1) & trajectory.terminated for trajectory in trajectories
        ]
        return Transitions(
            observations=np.concatenate([trajectory.observations[:-1] for trajectory in trajectories]),
            actions=np.concatenate([trajectory.actions for trajectory in trajectories]),
            next_observations=np.concatenate([trajectory.observations[1:] for trajectory in trajectories]),
            terminated=np.concatenate(terminated),
            rewards=np.concatenate([trajectory.rewards for trajectory in trajectories]).astype(np.float64),
            episodes=np.repeat(np.arange(len(trajectories)), lengths),
            steps=np.concatenate([trajectory.start + np.arange(len(trajectory)) for trajectory in trajectories]),
        )
