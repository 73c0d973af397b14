"""Two environments such as a user brings: ``benchmarks.puck_and_shop:Puck-v0`` and ``…:Shop-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray

Reset = tuple[Array, dict[str, Any]]
Step = tuple[Array, float, bool, bool, dict[str, Any]]


class Puck(gym.Env[Array, Array]):
    """A point mass with drag, between walls that it bounces off, has to reach its episode's goal and stay there.

    Observations are position, five times the velocity, and goal, float32 ``[6]``; the goal's distance is not among them. Actions
    are forces, ``[2]``. The reward is minus the distance, and a little for the force.
    """

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-3.0, 3.0, (6,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start at a random place, at rest."""
        super().reset(seed=seed)
        self.place: FloatArray = self.np_random.uniform(-1.0, 1.0, 2)
        self.velocity: FloatArray = np.zeros(2)
        self.goal: FloatArray = self.np_random.uniform(-0.8, 0.8, 2)
        return self._seen(), {}

    def step(self, action: Array) -> Step:
        """Push the puck."""
        force = np.clip(np.asarray(action, float), -1.0, 1.0)
        self.velocity = 0.92 * self.velocity + 0.012 * force
        place = self.place + self.velocity
        self.velocity = np.where(np.abs(place) > 1.5, -0.5 * self.velocity, self.velocity)
        self.place = np.clip(place, -1.5, 1.5)
        reward = -float(np.linalg.norm(self.place - self.goal)) - 0.02 * float(force @ force)
        return self._seen(), reward, False, False, {}

    def _seen(self) -> Array:
        return np.concatenate([self.place, 5.0 * self.velocity, self.goal]).astype(np.float32)


class Shop(gym.Env[Array, int]):
    """A shop orders 0 to 4 crates of 4 a day, which come two days later; demand is random and follows the week.

    Observations are stock, both orders on their way and the last demand, divided by 20, and the day as sine and cosine, float32
    ``[6]``. The reward: .2 for each piece sold, −.3 for each asked for in vain, −.06 for each in stock at the end of the day.
    """

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-1.0, 4.0, (6,), np.float32)
        self.action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start on a random day, with a random stock and nothing ordered."""
        super().reset(seed=seed)
        self.day = int(self.np_random.integers(7))
        self.stock = float(self.np_random.integers(0, 40))
        self.ordered, self.demand = [0.0, 0.0], 0.0
        return self._seen(), {}

    def step(self, action: int) -> Step:
        """Order crates; then a day passes."""
        self.stock = min(60.0, self.stock + self.ordered.pop(0))
        self.ordered.append(4.0 * float(action))
        self.demand = float(self.np_random.poisson(5.0 + 3.0 * np.sin(2.0 * np.pi * self.day / 7.0)))
        sold = min(self.stock, self.demand)
        self.stock -= sold
        self.day = (self.day + 1) % 7
        return self._seen(), 0.2 * sold - 0.3 * (self.demand - sold) - 0.06 * self.stock, False, False, {}

    def _seen(self) -> Array:
        week = 2.0 * np.pi * self.day / 7.0
        numbers = [self.stock / 20.0, self.ordered[0] / 20.0, self.ordered[1] / 20.0]
        return np.array([*numbers, np.sin(week), np.cos(week), self.demand / 20.0], np.float32)


gym.register("Puck-v0", Puck, max_episode_steps=150)
gym.register("Shop-v0", Shop, max_episode_steps=120)
