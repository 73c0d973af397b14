"""Gives any environment a fixed episode length, so that the end of an episode reveals nothing about performance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.observations import copied, plain_end

FIXED_PREFIX = "fixed/"
"""Prefix of an id for the same environment with a fixed episode length (`FixedHorizon`)."""


class FixedHorizon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Continues an environment's episodes after their end; ``fixed/ID`` wraps the environment ``ID``.

    After the end, each step repeats the last observation with reward 0, until the time limit truncates the episode (as in
    `seals`, "absorbing states"). Nothing ever terminates.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self._end: tuple[Any, dict[str, Any]] | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        self._end = None
        return super().reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`. Never terminates."""
        if self._end is not None:
            return copy.deepcopy(self._end[0]), 0.0, False, False, dict(self._end[1])
        observation, reward, terminated, truncated, info = super().step(action)
        if plain_end(terminated, "terminated"):
            self._end = copied(observation), info
        return observation, reward, False, truncated, info


def fixed(
    name: str, make: Callable[..., gymnasium.Env[Any, Any]] = gymnasium.make, **options: Any
) -> gymnasium.Env[Any, Any]:
    """Make the environment ``name`` by ``make``, with episodes of a fixed length: its time limit.

    Raises:
        SettingError: it has no time limit.
    """
    env = make(name, **options)
    limit = None if env.spec is None else env.spec.max_episode_steps
    if limit is None:
        raise SettingError(f"{name} has no time limit (max_episode_steps) to use as the fixed episode length.")
    # A time limit that counts the steps after the end, too; the environment's own doesn't.
    return gymnasium.wrappers.TimeLimit(FixedHorizon(env), max_episode_steps=limit)
