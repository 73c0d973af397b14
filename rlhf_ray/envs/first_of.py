"""FirstOf: the only copy of a vector environment, as an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv


class FirstOf(gym.Env[Any, Any]):
    """One environment from a vector environment of one copy, with next-step autoreset."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, copies: VectorEnv[Any, Any, Any]):
        self.copies = copies
        self.spec, self.metadata, self.render_mode = copies.spec, copies.metadata, copies.render_mode
        self.observation_space, self.action_space = copies.single_observation_space, copies.single_action_space
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        super().reset(seed=seed)
        observations, infos = self.copies.reset(seed=seed, options=options)
        self._over = False
        return observations[0], _of_first(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium. After the end of an episode, call ``reset`` first."""
        if self._over:
            raise ResetNeeded("The episode has ended or not started; call reset().")
        observations, rewards, terminated, truncated, infos = self.copies.step(np.asarray(action)[None])
        self._over = bool(terminated[0] or truncated[0])
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _of_first(infos)

    def render(self) -> Any:
        """Return the image of the copy; None without a ``render_mode``."""
        frames: Any = self.copies.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Free the copy. May be called repeatedly."""
        self._over = True
        self.copies.close()


def _of_first(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the infos of the first copy, without gymnasium's masks and what is said of other copies."""
    said = {}
    for name, values in infos.items():
        if name.startswith("_") or not np.all(infos.get(f"_{name}", True)):
            continue
        if isinstance(values, Mapping):
            said[name] = _of_first(values)
        elif isinstance(values, np.ndarray):
            said[name] = values[0].item() if isinstance(values[0], np.generic) else values[0]
    return said
