"""Gymnasium environments, single and vectorised, made from worlds of levels."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError

from .levels import LevelBatch

MOST_LEVELS = 2**31
"""Levels that episodes without a seed draw from."""
RENDER_FPS = 8


def _checked_mode(render_mode: str | None, name: str) -> None:
    if render_mode not in (None, "rgb_array"):
        raise SettingError(f"render_mode of {name} is {render_mode!r}; it must be None or 'rgb_array'.")


class LevelEnv(gymnasium.Env[Array, np.int64]):
    """One copy of a world as an ordinary environment.

    ``reset(seed=level)`` plays that level; without a seed, each episode draws its level. ``info`` has ``level_seed`` in the first
    and last step of an episode, and ``cause`` in the last one.

    Args:
        render_mode: None or "rgb_array".
        **options: the world's.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": RENDER_FPS}  # noqa: RUF012
    batch_class: ClassVar[Any]

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        _checked_mode(render_mode, self.batch_class.name)
        self.render_mode = render_mode
        self.batch: LevelBatch = self.batch_class(1, **options)
        self.observation_space, self.action_space = self.batch.observation_space, self.batch.action_space
        self.action_names, self.edits = self.batch.action_names, self.batch.edits
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start the level ``seed``, or a drawn one."""
        super().reset(seed=seed, options=options)
        level = int(self.np_random.integers(MOST_LEVELS)) if seed is None else seed
        self._running = True
        return self.batch.reset([level])[0], {"level_seed": level}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step the world. After the end of an episode, call ``reset`` first."""
        if not self._running:
            raise ResetNeeded("The episode has ended or not started; call reset().")
        step = self.batch.step(np.array([action]))
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._running = False
            info = {"level_seed": int(self.batch.state["level"][0]), "cause": step.causes[0]}
        return step.observations[0], float(step.rewards[0]), terminated, truncated, info

    def render(self) -> Array | None:  # type: ignore[override]
        """Return a picture, uint8 ``[256, 256, 3]``, in render_mode "rgb_array"; else None."""
        return self.batch.render()[0] if self.render_mode == "rgb_array" else None

    def describe(self) -> dict[str, float]:
        """Return what the world says about its state; see its batch."""
        return {name: float(values[0]) for name, values in self.batch.describe().items()}

    def masks(self) -> dict[str, BoolArray]:
        """Return where each kind of object is in the observation, bool ``[16, 16]`` by name."""
        return {name: mask[0] for name, mask in self.batch.masks().items()}

    def get_state(self) -> bytes:
        """Return the state; see `LevelBatch.states`."""
        return self.batch.states()[0]

    def set_state(self, state: bytes) -> Array:
        """Restore a state; return its observation."""
        observation: Array = self.batch.restore([state])[0]
        self._running = not self.batch.ended_by()[0]
        return observation

    def edit(self, name: str) -> Array:
        """Change the current level; return the observation. See ``edits``."""
        observation: Array = self.batch.edit(name)[0]
        return observation

    def expert(self, rng: np.random.Generator) -> int:
        """Return an action of a scripted player."""
        return int(self.batch.expert(rng)[0])


class LevelVectorEnv(VectorEnv[Array, Array, Array]):
    """Copies of a world, stepped together, with next-step autoreset: the step after an episode's end starts the next one.

    With the same seed, sub-environment i plays the same levels regardless of the number of sub-environments. ``infos`` (with
    gymnasium's masks) has ``level_seed`` at the first and last step of an episode, and ``cause`` at the last one.

    Args:
        num_envs: number of copies.
        render_mode: None or "rgb_array".
        **options: the world's.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    batch_class: ClassVar[Any]

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **options: Any) -> None:
        _checked_mode(render_mode, self.batch_class.name)
        self.batch: LevelBatch = self.batch_class(num_envs, **options)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = self.batch.observation_space, self.batch.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._ended = np.ones(num_envs, bool)
        self._random: list[np.random.Generator] = []

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode in all sub-environments; with ``seed``, sub-environment i starts with the level ``seed + i``."""
        if options is not None and "reset_mask" in options:
            raise ValueError(
                "options['reset_mask'] is not supported; the next step resets ended episodes. Remove reset_mask."
            )
        everywhere = np.ones(self.num_envs, bool)
        seeds = (
            [None if seed is None else seed + i for i in range(self.num_envs)] if not isinstance(seed, list) else seed
        )
        if not self._random:
            self._random = [np.random.default_rng() for _ in range(self.num_envs)]
        self._random = [
            old if new is None else np.random.default_rng(new) for old, new in zip(self._random, seeds, strict=True)
        ]
        drawn = [self._draw(i) if level_seed is None else level_seed for i, level_seed in enumerate(seeds)]
        self.batch.start(everywhere, drawn)
        self._ended = ~everywhere
        return self.batch.observe(), {"level_seed": np.array(drawn, np.int64), "_level_seed": everywhere}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all sub-environments, and start an episode in those whose last one ended in the step before."""
        if not self._random:
            raise ResetNeeded("Call reset() before step().")
        starting = self._ended
        rewards = self.batch.advance(actions)
        if starting.any():
            self.batch.start(starting, [self._draw(int(i)) for i in np.flatnonzero(starting)])
        terminated, truncated = self.batch.ends()
        self._ended = ended = terminated | truncated
        infos: dict[str, Any] = {}
        if ended.any() or starting.any():
            infos = {"level_seed": self.batch.state["level"].astype(np.int64), "_level_seed": ended | starting}
        if ended.any():
            infos |= {"cause": np.array(self.batch.ended_by(), object), "_cause": ended.copy()}
        return self.batch.observe(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """Return the current pictures, uint8 ``[256, 256, 3]`` each, in render_mode "rgb_array"; else None."""
        return tuple(self.batch.render()) if self.render_mode == "rgb_array" else None

    def _draw(self, i: int) -> int:
        return int(self._random[i].integers(MOST_LEVELS))
