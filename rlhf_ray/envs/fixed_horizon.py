"""Gives any environment a fixed episode length, so that the end of an episode reveals nothing about performance.

Two ways to fill the steps after the end: ``fixed/ID`` repeats the last observation (`FixedHorizon`), ``absorbing/ID`` shows an
absorbing state that no other observation looks like (`AbsorbingState`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.observations import copied, plain_end


class FixedHorizon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Continues an environment's episodes after their end; ``fixed/ID`` wraps the environment ``ID``.

    After the end, each step repeats the last observation with reward 0, until the time limit truncates the episode (as in
    `seals`, "absorbing states"). Nothing ever terminates.

    Args:
        env: the environment.
    """

    reward_after = 0.0
    """True reward of each step after the end."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self._end: tuple[Any, dict[str, Any]] | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        self._end = None
        observation, info = super().reset(**arguments)
        return self.before_the_end(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`. Never terminates."""
        if self._end is not None:
            return copy.deepcopy(self._end[0]), self.reward_after, False, False, dict(self._end[1])
        observation, reward, terminated, truncated, info = super().step(action)
        if not plain_end(terminated, "terminated"):
            return self.before_the_end(observation), reward, False, truncated, info
        self._end = self.at_the_end(observation), info
        return copy.deepcopy(self._end[0]), reward, False, truncated, info

    def before_the_end(self, observation: Any) -> Any:
        """Return what is shown of an observation before the end."""
        return observation

    def at_the_end(self, observation: Any) -> Any:
        """Return what is shown from the end on, whose observation is ``observation``."""
        return copied(observation)


class AbsorbingState(FixedHorizon):
    """Sends an environment's episodes to an absorbing state at their end; ``absorbing/ID`` wraps the environment ``ID``.

    Observations get one feature more, a flag that is last: 0 during the episode, 1 in the absorbing state, where all other
    features are 0 and each reward is ``reward``, until the time limit truncates the episode (Kostrikov et al. 2019, "Discriminator-
    Actor-Critic"; with ``reward``, `seals`' ``AbsorbAfterDoneWrapper``). A reward model can so learn what the end is worth, and
    doesn't mistake it for the last observation. Nothing ever terminates.

    Args:
        env: the environment; its observations are a `Box` of one dimension.
        reward: the true reward of each step in the absorbing state.

    Raises:
        SettingError: the observations are something else.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], reward: float = 0.0):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise SettingError(
                f"{ABSORBING_PREFIX} needs observations that are a Box of one dimension, not {space}; use fixed/."
            )
        low, high = np.append(np.minimum(space.low, 0), 0), np.append(np.maximum(space.high, 0), 1)
        dtype: Any = space.dtype
        self.observation_space = gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        self.reward_after = float(reward)

    def before_the_end(self, observation: Any) -> Any:
        """Append the flag 0."""
        return np.append(observation, 0).astype(self.observation_space.dtype)

    def at_the_end(self, observation: Any) -> Any:
        """Return the absorbing state."""
        absorbing = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        absorbing[-1] = 1
        return absorbing


FIXED_PREFIX = "fixed/"
"""Prefix of an id for the same environment with a fixed episode length (`FixedHorizon`)."""

ABSORBING_PREFIX = "absorbing/"
"""Prefix of an id for the same environment with an absorbing state at the end of episodes (`AbsorbingState`)."""

WRAPPERS = {FIXED_PREFIX: FixedHorizon, ABSORBING_PREFIX: AbsorbingState}
"""How the steps after the end are filled, by the prefix of the id."""


def prefix_of(name: str) -> str | None:
    """Return the prefix of ``name`` that asks for a fixed episode length; None without."""
    return next((prefix for prefix in WRAPPERS if name.startswith(prefix)), None)


def fixed(
    name: str, prefix: str = FIXED_PREFIX, make: Callable[..., gymnasium.Env[Any, Any]] = gymnasium.make, **options: Any
) -> gymnasium.Env[Any, Any]:
    """Make the environment ``name`` with episodes of a fixed length: its time limit.

    Args:
        name: its id.
        prefix: how to fill the steps after the end.
        make: makes it.
        **options: of the environment; ``absorbing_reward`` is for `AbsorbingState`.

    Raises:
        SettingError: it has no time limit, or no observations that fit.
    """
    ours = {"reward": options.pop("absorbing_reward", 0.0)} if prefix == ABSORBING_PREFIX else {}
    env = make(name, **options)
    limit = None if env.spec is None else env.spec.max_episode_steps
    if limit is None:
        raise SettingError(f"{name} has no time limit (max_episode_steps) to use as the fixed episode length.")
    # A time limit that counts the steps after the end, too; the environment's own doesn't.
    return gymnasium.wrappers.TimeLimit(WRAPPERS[prefix](env, **ours), max_episode_steps=limit)
