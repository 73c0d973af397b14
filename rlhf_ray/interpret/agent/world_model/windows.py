"""Windows of episodes in memory, and how a world model reads windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WindowNumbers, action_inputs
from rlhf_ray.data.arrays import IntArray


class WindowSource(Protocol):
    """Windows at random access: `EpisodeWindows`, or those of a recording (`rlhf_ray.agents.recorded.Windows`)."""

    length: int

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Sequence[int] | IntArray) -> Episodes: ...


class EpisodeWindows(WindowNumbers):
    """Windows of ``length`` consecutive observations of ``episodes``; shorter episodes have one window, with padding after it."""

    def __init__(self, episodes: Episodes, length: int):
        super().__init__(episodes.lengths, length)
        self.episodes = episodes

    def __getitem__(self, numbers: Sequence[int] | IntArray) -> Episodes:
        """Return the windows with these numbers."""
        starts = self.starts(numbers)
        return cut_out(self.episodes, starts.rows, starts.steps, self.length)


def cut_out(episodes: Episodes, rows: IntArray, starts: IntArray, length: int) -> Episodes:
    """Return the ``length`` observations from ``starts`` on of the episodes ``rows``; padding repeats an episode's last row."""
    times = starts[:, None] + np.arange(length)
    frames = rows[:, None], np.minimum(times, episodes.lengths[rows][:, None])
    steps = rows[:, None], np.minimum(times[:, :-1], np.maximum(episodes.lengths[rows][:, None] - 1, 0))
    lengths = np.clip(episodes.lengths[rows] - starts, 0, length - 1)
    last = starts + lengths == episodes.lengths[rows]
    return Episodes(
        observations=episodes.observations[frames],
        actions=episodes.actions[steps],
        logits=episodes.logits[steps],
        values=episodes.values[steps],
        memory=episodes.memory[frames],
        rewards=episodes.rewards[steps],
        lengths=lengths,
        terminated=episodes.terminated[rows] & last,
        truncated=episodes.truncated[rows] & last,
        causes=[episodes.causes[row] if ended else "" for row, ended in zip(rows, last, strict=True)],
        levels=episodes.levels[rows],
    )


@dataclass(frozen=True)
class Read:
    """Windows as a world model reads them.

    Attributes:
        observations: ``[n, L, …]``.
        actions: ``[n, L - 1, actions]``: one-hot, or policy actions.
        rewards, ends: of the step that led to each observation but the first, ``[n, L - 1]``.
        real: which observations are no padding, ``[n, L]``.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    real: Tensor


def read(windows: Episodes, action_space: gym.Space[Any], device: torch.device | str = "cpu") -> Read:
    """Convert windows to tensors."""
    n, length = windows.observations.shape[:2]
    times = np.arange(length)
    ends = windows.terminated[:, None] & (times[:-1] == windows.lengths[:, None] - 1)
    tensors = (
        torch.as_tensor(np.ascontiguousarray(windows.observations)),
        as_policy_actions(windows.actions, action_space),
        torch.as_tensor(windows.rewards, dtype=torch.float32),
        torch.as_tensor(ends.reshape(n, length - 1), dtype=torch.float32),
        torch.as_tensor(times <= windows.lengths[:, None]),
    )
    return Read(*(tensor.to(device) for tensor in tensors))


def as_policy_actions(actions: Any, space: gym.Space[Any]) -> Tensor:
    """Return `action_inputs` as a tensor, float32."""
    return torch.as_tensor(np.asarray(action_inputs(np.asarray(actions), space), np.float32))
