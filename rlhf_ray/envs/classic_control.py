"""Vector environments of Pendulum and CartPole that step all copies with a few operations on arrays.

Their steps are those of gymnasium's single environments, but for the last bits of the arithmetic. A loop over copies spends most of
a training's sampling in wrappers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray


class ArrayVectorEnv(VectorEnv[Array, Array, Array]):
    """``num_envs`` copies of a gymnasium environment whose state is an array ``state``; next-step autoreset.

    The copies reset themselves, with random generators of their own, and draw their images. They never terminate: episodes end at
    the time limit of the id.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    name: ClassVar[str]
    """Id of the environment."""

    def __init__(self, num_envs: int = 1, **options: Any):
        made = [gymnasium.make(self.name, **options) for _ in range(num_envs)]
        self.copies: list[Any] = [env.unwrapped for env in made]
        self.num_envs, self.spec, self.render_mode = num_envs, made[0].spec, made[0].render_mode
        self.metadata = {**self.copies[0].metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = made[0].observation_space, made[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        assert self.spec is not None
        self._limit = self.spec.max_episode_steps
        self._lengths: Any = None

    def move(self, states: FloatArray, actions: Array) -> tuple[FloatArray, FloatArray]:
        """Return the next states, float64 ``[n, …]``, and the rewards ``[n]``."""
        raise NotImplementedError

    def observe(self, states: FloatArray) -> Array:
        """Return the observations ``[n, …]`` of states."""
        raise NotImplementedError

    def pose(self, copy: Any, action: Array | None) -> None:
        """Prepare a copy that has its state for its image after ``action``; None at the start of an episode."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every copy, with a seed for each; a number ``s`` gives ``s``, ``s + 1``, …."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        for copy, own in zip(self.copies, seeds, strict=True):
            copy.reset(seed=own, options=options)
        self._states: FloatArray = np.stack([copy.state for copy in self.copies]).astype(np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._ended: BoolArray = np.zeros(self.num_envs, bool)
        self._acted: Array = np.zeros(self.num_envs)
        return self.observe(self._states), {}

    def step(self, actions: Array) -> tuple[Array, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Step all copies, and start an episode in those whose last one ended in the step before."""
        if self._lengths is None:
            raise ResetNeeded("Call reset() before step().")
        self._acted = np.asarray(actions)
        self._states, rewards = self.move(self._states, self._acted)
        self._lengths += 1
        for i in self._ended.nonzero()[0]:
            self.copies[i].reset()
            self._states[i], rewards[i], self._lengths[i] = self.copies[i].state, 0.0, 0
        self._ended = self._lengths >= self._limit if self._limit else np.zeros(self.num_envs, bool)
        return self.observe(self._states), rewards, np.zeros(self.num_envs, bool), self._ended.copy(), {}

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """Return an image of each copy in render_mode "rgb_array"; else None."""
        if self.render_mode is None:
            return None
        for copy, state, action, length in zip(self.copies, self._states, self._acted, self._lengths, strict=True):
            copy.state = state
            self.pose(copy, action if length else None)
        return tuple(copy.render() for copy in self.copies)

    def close_extras(self, **keywords: Any) -> None:
        """Close the copies."""
        for copy in self.copies:
            copy.close()


def _between(values: Array, low: float, high: float) -> Array:
    """`numpy.clip`, which takes several times as long for a few numbers."""
    return np.minimum(np.maximum(values, low), high)


class PendulumVectorEnv(ArrayVectorEnv):
    """Copies of gymnasium's Pendulum-v1."""

    name = "Pendulum-v1"

    def move(self, states: FloatArray, actions: Array) -> tuple[FloatArray, FloatArray]:
        """See `ArrayVectorEnv`. Actions are torques, ``[n, 1]``."""
        of, (angle, speed), torque = self.copies[0], states.T, self._torques(actions)[:, 0]
        off_upright = (angle + np.pi) % (2 * np.pi) - np.pi
        costs = off_upright**2 + 0.1 * speed**2 + 0.001 * (torque**2)
        push = 3 * of.g / (2 * of.l) * np.sin(angle) + 3.0 / (of.m * of.l**2) * torque
        moved = np.empty_like(states)
        moved[:, 1] = faster = _between(speed + push * of.dt, -of.max_speed, of.max_speed)
        moved[:, 0] = angle + faster * of.dt
        return moved, -costs

    def pose(self, copy: Any, action: Array | None) -> None:
        """See `ArrayVectorEnv`: the arrow of the torque."""
        copy.last_u = None if action is None else self._torques(action)[0]

    def _torques(self, actions: Array) -> Array:
        return _between(actions, -self.copies[0].max_torque, self.copies[0].max_torque)

    def observe(self, states: FloatArray) -> Array:
        """See `ArrayVectorEnv`."""
        angle, speed = states.T
        seen = np.empty((len(states), 3), np.float32)
        seen[:, 0], seen[:, 1], seen[:, 2] = np.cos(angle), np.sin(angle), speed
        return seen


class CartPoleFixedVectorEnv(ArrayVectorEnv):
    """Copies of ``rlhf_ray/CartPoleFixed-v0``."""

    name = "rlhf_ray/CartPoleFixed-v0"

    def move(self, states: FloatArray, actions: Array) -> tuple[FloatArray, FloatArray]:
        """See `ArrayVectorEnv`. Actions are 0 and 1, ``[n]``."""
        of, (x, speed, angle, turn) = self.copies[0], states.T
        force = np.where(actions == 1, of.force_mag, -of.force_mag)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (force + of.polemass_length * np.square(turn) * sin) / of.total_mass
        lever = of.length * (4.0 / 3.0 - of.masspole * np.square(cos) / of.total_mass)
        turned = (of.gravity * sin - cos * push) / lever
        pulled = push - of.polemass_length * turned * cos / of.total_mass
        moved = (x + of.tau * speed, speed + of.tau * pulled, angle + of.tau * turn, turn + of.tau * turned)
        stands = (np.abs(moved[0]) <= of.x_threshold) & (np.abs(moved[2]) <= of.theta_threshold_radians)
        return np.stack(moved, 1), stands.astype(np.float64)

    def observe(self, states: FloatArray) -> Array:
        """See `ArrayVectorEnv`."""
        return states.astype(np.float32)
