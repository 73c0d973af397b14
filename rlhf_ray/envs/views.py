"""Environments whose observations and actions are arrays of ours: see `rlhf_ray.data.views`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from rlhf_ray.data.spaces import without_formal
from rlhf_ray.data.views import View as View  # where users look for it
from rlhf_ray.data.views import action_view_of
from rlhf_ray.data.views import view_of as view_of


class Viewed(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations and actions are arrays of ours (see `view_of`); spaces without a view stay.

    Discrete actions that don't start at 0 are numbered from 0, and a Box of actions becomes one of one dimension.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self._see: Callable[[Any], Any] = _unchanged
        self.unscaled: str | None = None
        if (view := view_of(env.observation_space)) is not None:
            self.observation_space, self._see = view.space, view.see
        self._act: Callable[[Any], Any] = _unchanged
        if (of_actions := action_view_of(env.action_space)) is not None:
            self.action_space, self._act = of_actions.space, of_actions.act
        if without_formal(space := env.action_space) is not space:
            self.unscaled = (
                f"the bounds of the actions {space} are too wide to scale to; the policy's actions go to the environment as they "
                "are, like those of an action space without bounds"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._see(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        observation, reward, terminated, truncated, info = self.env.step(self._act(action))
        return self._see(observation), reward, terminated, truncated, info


def viewed(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return ``env`` with observations and actions as arrays of ours: itself, if they are."""
    plain = action_view_of(env.action_space) is None and view_of(env.observation_space) is None
    return env if plain else Viewed(env)


def notes(env: gym.Env[Any, Any]) -> list[str]:
    """Say which declared bounds an environment's views don't use as such, and what they do instead: a line for each kind."""
    return [layer.unscaled for layer in layers(env) if isinstance(layer, Viewed) and layer.unscaled is not None]


def layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, single or vector, from the outside, and the environment."""
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        yield env
        env = env.env
    yield env


def _unchanged(value: Any) -> Any:
    return value
