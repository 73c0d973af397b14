"""MountainCar with episodes of one length and a reward that is known with any potential shaping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlhf_ray.data.arrays import Array
from rlhf_ray.envs.formula import Formula, KnownReward, Shaping, checked_option

GOAL_POSITION = 0.5
SCALE = 100.0
"""Scale of the potentials: far larger than the reward itself, so that they hide it."""

_LOW, _HIGH = (-1.2, -0.07), (0.6, 0.07)


class MountainCar(KnownReward):
    """Moore's car, too weak to climb the hill without a run-up; registered as ``rlhf_ray/MountainCar-v0``, episodes of 200 steps.

    The physics of gymnasium's ``MountainCar-v0``, without its end at the goal.

    * Observation: float32 [2]: position, -1.2 to 0.6; velocity, -0.07 to 0.07. At either end the car stops.
    * Action: Discrete(3): 0 push left, 1 coast, 2 push right.
    * Reward: 0 if the step leads to a position above 0.5, else -1. Plus potential shaping.
    * Start: at rest at a position from -0.6 to -0.4.

    Args:
        shaping: none; dense, the potential 100 x position; antidense, -100 x position; random, 100 times a product of sines of
            position and velocity.
        gamma: discount of the shaping.
        shaping_seed: draws the random potential.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, shaping: Shaping = "none", gamma: float = 0.99, shaping_seed: int = 0, render_mode: None = None
    ) -> None:
        checked_option("shaping", shaping, Shaping, "MountainCar")
        self.observation_space = spaces.Box(np.array(_LOW, np.float32), np.array(_HIGH, np.float32))
        self.action_space = spaces.Discrete(3)
        name = "above 0.5" if shaping == "none" else f"above 0.5, {shaping} shaping"
        potential = _potential(shaping, shaping_seed)
        self.formula = Formula(name, above_the_hill, potential, gamma, ("next_state",), differentiable=True)
        self._position = self._velocity = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Put the car in the valley."""
        super().reset(seed=seed, options=options)
        self._position, self._velocity = float(self.np_random.uniform(-0.6, -0.4)), 0.0
        return self._observation(), {}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Push the car. Never terminates."""
        if not 0 <= action < 3:
            raise ValueError(f"The action of MountainCar is {action}; it must be 0 to 2.")
        before = self._observation()
        pull = 0.0025 * math.cos(3 * self._position)
        self._velocity = min(max(self._velocity + 0.001 * (int(action) - 1) - pull, _LOW[1]), _HIGH[1])
        self._position = min(max(self._position + self._velocity, _LOW[0]), _HIGH[0])
        if self._position in (_LOW[0], _HIGH[0]):
            self._velocity = 0.0
        after = self._observation()
        return after, self.formula.step(before, action, after, False), False, False, {}

    def expert(self, rng: np.random.Generator) -> int:
        """Return the push in the direction in which the car moves; it swings up and stays there."""
        return 2 if self._velocity >= 0 else 0

    def describe(self) -> dict[str, float]:
        """Return position, velocity and the height of the car, sin(3 x position)."""
        return {
            "position": self._position,
            "velocity": self._velocity,
            "height": math.sin(3 * self._position),
        }

    def _observation(self) -> Array:
        return np.array([self._position, self._velocity], np.float32)


def above_the_hill(observations: Any, actions: Any, next_observations: Any) -> Any:
    """Compute MountainCar's reward, ``[n]``: 0 where the next position is above 0.5, else -1. Arrays or tensors."""
    return 1.0 * (next_observations[:, 0] > GOAL_POSITION) - 1.0


def _potential(shaping: str, seed: int) -> Any:
    if shaping == "none":
        return None
    if shaping == "random":
        rng = np.random.default_rng(seed)
        a, b = rng.uniform(1.0, 5.0), rng.uniform(0.0, 2 * math.pi)
        c, d = rng.uniform(10.0, 50.0), rng.uniform(0.0, 2 * math.pi)
        return lambda at: SCALE * _sin(a * _column(at, 0) + b) * _sin(c * _column(at, 1) + d)
    scale = SCALE if shaping == "dense" else -SCALE
    return lambda at: scale * _column(at, 0)


def _column(observations: Any, which: int) -> Any:
    """One feature of the observations; of arrays, in float64, in which a shaping cancels out exactly."""
    one = observations[:, which]
    return one if isinstance(one, Tensor) else one.astype(np.float64)


def _sin(of: Any) -> Any:
    return torch.sin(of) if isinstance(of, Tensor) else np.sin(of)
