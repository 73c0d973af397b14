"""CoinRun whose reward says what a person at the page sees: how far right the agent got, and whether it took the coin.

The game rewards only the coin. Hardly any clip of an untrained agent has it, so nearly all answers of a teacher who knows nothing
else would be ties. `benchmarks/method.py coinrun` trains on `benchmarks.coinrun_progress:CoinrunProgress-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rlhf_ray.envs.procgen import ProcgenEnv
from rlhf_ray.envs.procgen_state import GameState

REWARD_PER_CELL = 0.1
"""A level has up to 64 cells, and the coin gives 10."""


class CoinrunProgress(ProcgenEnv):
    """Easy levels; each step's reward is 0.1 for every cell further right than before in the episode, and the game's own."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__("coinrun", "easy", render_mode=render_mode)
        self._farthest = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a level."""
        observation, info = super().reset(seed=seed, options=options)
        self._farthest = self._x()
        return observation, info

    def step(self, action: int | np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game."""
        observation, reward, terminated, truncated, info = super().step(action)
        if not (terminated or truncated):  # otherwise the native game is in its next level already
            x = self._x()
            reward += REWARD_PER_CELL * max(0.0, x - self._farthest)
            self._farthest = max(self._farthest, x)
        return observation, reward, terminated, truncated, info

    def _x(self) -> float:
        return float(GameState.parse(self.copies._native.get_state()[0]).agent["x"])


gymnasium.register("CoinrunProgress-v0", CoinrunProgress)
