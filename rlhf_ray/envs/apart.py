"""EnvApart: one environment in a process of its own, for simulators of which a process can have only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.envs.worker_processes import WorkerProcessesVectorEnv


class EnvApart(gym.Env[Any, Any]):
    """An environment in a process of its own. Its methods are gymnasium's; other ones and attributes stay there.

    Args:
        name: its name in errors.
        make: makes it.
        spec: what it is registered as.

    Raises:
        FaultyEnvironmentError: it can't be made there; also from its methods.
    """

    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]], spec: Any):
        self._copies = WorkerProcessesVectorEnv(name, make, 1, 1)
        self.spec, self.metadata, self.render_mode = spec, self._copies.metadata, self._copies.render_mode
        self.observation_space = self._copies.single_observation_space
        self.action_space = self._copies.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        observations, infos = self._copies.reset(seed=seed, options=options)
        return observations[0], _of_first(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        observations, rewards, terminated, truncated, infos = self._copies.step(np.asarray(action)[None])
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _of_first(infos)

    def render(self) -> Any:
        """See gymnasium."""
        return self._copies.render()[0]

    def close(self) -> None:
        """End the process."""
        self._copies.close()


def _of_first(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of the only copy, without gymnasium's masks."""
    return {
        name: _of_first(values) if isinstance(values, Mapping) else values[0]
        for name, values in infos.items()
        if f"_{name}" in infos
    }
