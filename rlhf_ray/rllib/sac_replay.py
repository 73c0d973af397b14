"""TransitionBuffer: SAC's replay buffer, a struct of arrays in a ring. Each row has its own next observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from rlhf_ray.data.arrays import Array

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS)


class TransitionBuffer:
    """The newest transitions of the environment, with the rewards that come with the episodes (`learned_reward.take_off`).

    A row never depends on its neighbours: its next observation is stored with it, so that the end of a rollout, of an episode or of
    the ring itself can't mix two episodes.

    Args:
        capacity: maximum number of transitions; new ones replace the oldest.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.added = 0
        """Number of transitions added so far."""
        self._columns: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, episodes: Sequence[Any]) -> dict[str, Tensor]:
        """Add the steps of RLlib episodes, or pieces of episodes. Return them as rows, in the layout of `sample`."""
        parts = [_rows(episode) for episode in episodes if len(episode)]
        if not parts:
            return {}
        rows = {name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in COLUMNS}
        count = len(rows[Columns.REWARDS])
        self._grow(rows, min(self.added + count, self.capacity))
        newest = slice(max(0, count - self.capacity), None)
        at = torch.arange(self.added, self.added + count)[newest] % self.capacity
        for name, values in rows.items():
            self._columns[name][at] = values[newest]
        self.added += count
        return _masked(rows)

    def sample(self, count: int) -> dict[str, Tensor]:
        """Draw transitions uniformly, with replacement, from torch's global generator.

        Returns:
            Columns of ``count`` rows: ``obs``, ``new_obs``, ``actions`` (the policy's), ``rewards`` (float32, as added),
            ``terminateds`` (bool) and ``loss_mask`` (bool, all True).
        """
        rows = torch.randint(len(self), (count,))
        return _masked({name: column[rows] for name, column in self._columns.items()})

    def reward_scale(self) -> tuple[float, float]:
        """Return the mean and standard deviation of the rewards in the buffer."""
        rewards = self._columns[Columns.REWARDS][: len(self)].double()
        return float(rewards.mean()), float(rewards.var(correction=0).clamp_min(1e-8).sqrt())

    def state(self) -> dict[str, Any]:
        """Return the content as numpy arrays, in the ring's order."""
        columns = {name: column[: len(self)].numpy() for name, column in self._columns.items()}
        return {"added": self.added, "capacity": self.capacity, "columns": columns}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, with its capacity."""
        self.capacity, self.added = int(state["capacity"]), int(state["added"])
        self._columns = {name: torch.from_numpy(np.array(values)) for name, values in state["columns"].items()}

    def _grow(self, like: dict[str, Tensor], size: int) -> None:
        """Make room for ``size`` rows: double, so that adding stays cheap."""
        if self._columns and len(self._columns[Columns.REWARDS]) >= size:
            return
        room = min(self.capacity, max(size, 2 * len(self)))
        for name, values in like.items():
            column = torch.zeros((room, *values.shape[1:]), dtype=values.dtype)
            if name in self._columns:
                column[: len(self._columns[name])] = self._columns[name]
            self._columns[name] = column


def _rows(episode: Any) -> dict[str, Array]:
    observations, steps = np.asarray(episode.get_observations()), len(episode)
    terminated = np.zeros(steps, dtype=bool)
    terminated[-1] = episode.is_terminated
    return {
        Columns.OBS: observations[:-1],
        Columns.ACTIONS: np.asarray(episode.get_actions()),
        Columns.REWARDS: np.asarray(episode.get_rewards(), dtype=np.float32),
        Columns.NEXT_OBS: observations[1:],
        Columns.TERMINATEDS: terminated,
    }


def _masked(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return rows | {Columns.LOSS_MASK: torch.ones(len(rows[Columns.REWARDS]), dtype=torch.bool)}
