"""Any environment with episodes of one fixed length, so that an episode's end says nothing about how well it went."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class FixedHorizon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose episodes go on after their end; ``fixed/ID`` makes it of the gymnasium environment ``ID``.

    After the end nothing moves: each step gives the last observation again and a reward of 0, until the time limit truncates the
    episode (`seals` does the same, "absorbing states"). Nothing is ever terminated.

    Args:
        env: without its time limit.
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
    """The gymnasium environment called ``name`` with episodes that all take as many steps as its time limit allows.

    Raises:
        ValueError: it has no time limit.
    """
    limit = gymnasium.spec(name).max_episode_steps
    if limit is None:
        raise ValueError(f"{name} has no time limit (max_episode_steps), which all its episodes could last for.")
    # The limit goes around what goes on after the end.
    made = FixedHorizon(gymnasium.make(name, max_episode_steps=-1, **options))
    return gymnasium.wrappers.TimeLimit(made, max_episode_steps=limit)
