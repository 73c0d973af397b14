"""Gives any environment a fixed episode length, so that the end of an episode reveals nothing about performance."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class FixedHorizon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Continues an environment's episodes after their end; ``fixed/ID`` wraps the gymnasium environment ``ID``.

    After the end, each step repeats the last observation with reward 0, until the time limit truncates the episode (as in
    `seals`, "absorbing states"). Nothing ever terminates.

    Args:
        env: the environment without its time limit.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self._end: tuple[Any, dict[str, Any]] | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        self._end = None
        return super().reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`. Never terminates."""
        if self._end is not None:
            return np.array(self._end[0]), 0.0, False, False, dict(self._end[1])
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated:
            self._end = np.array(observation), info
        return observation, float(reward), False, truncated, info


def fixed(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make the gymnasium environment ``name`` with episodes of a fixed length: its time limit.

    Raises:
        ValueError: it has no time limit.
    """
    limit = gymnasium.spec(name).max_episode_steps
    if limit is None:
        raise ValueError(f"{name} has no time limit (max_episode_steps) to use as the fixed episode length.")
    # The time limit must wrap FixedHorizon, which never ends an episode.
    made = FixedHorizon(gymnasium.make(name, max_episode_steps=-1, **options))
    return gymnasium.wrappers.TimeLimit(made, max_episode_steps=limit)
