"""A dot to be moved to the middle of the picture: the smallest task that is seen only in pixels."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

IMAGE_SIDE = 64
DOT_SIDE = 4
STRIDE = 2
"""Pixels that one action moves the dot."""

_POSITIONS = (IMAGE_SIDE - DOT_SIDE) // STRIDE + 1
"""Places along one axis: the dot stands on a lattice of STRIDE pixels, one point of which is the exact centre."""

_MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))
"""(rows, columns) of the lattice for stay, up, right, down, left."""


class MovingDot(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One white 4x4 dot on black; registered as ``rlhf_ray/MovingDot-v0``, with episodes of exactly 100 steps.

    A smoke test for learning from pictures, after M. Rahtz's gym-moving-dot: a policy that works is seen at a glance,
    and a frame is made in microseconds.

    * Observation: uint8 [64, 64, 3], 0 or 255.
    * Action: Discrete(5): 0 stay, 1 up, 2 right, 3 down, 4 left; by 2 pixels, and no further than the edge.
    * Reward: minus the distance, after the step, from the dot's centre to the image's centre, in units of 32 pixels:
      0 in the middle, -1.33 in a corner.
    * Start: uniformly at random over the 31 x 31 places that the dot can be in.

    The class itself never ends an episode: the time limit comes with the registered name.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} of MovingDot: it must be None or 'rgb_array'.")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(len(_MOVES))
        self._row = self._column = _POSITIONS // 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Puts the dot somewhere at random."""
        super().reset(seed=seed, options=options)
        self._row, self._column = (int(place) for place in self.np_random.integers(_POSITIONS, size=2))
        return self._frame(), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Moves the dot. Never terminates."""
        if not 0 <= action < len(_MOVES):
            raise ValueError(f"Action {action} of MovingDot: it must be 0 to {len(_MOVES) - 1}.")
        rows, columns = _MOVES[action]
        self._row = min(max(self._row + rows, 0), _POSITIONS - 1)
        self._column = min(max(self._column + columns, 0), _POSITIONS - 1)
        middle = _POSITIONS // 2
        distance = STRIDE * math.hypot(self._row - middle, self._column - middle)
        return self._frame(), -distance / (IMAGE_SIDE / 2), False, False, {}

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The current frame, uint8 [64, 64, 3], in render_mode "rgb_array"; else None."""
        return self._frame() if self.render_mode == "rgb_array" else None

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.zeros((IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
        top, left = STRIDE * self._row, STRIDE * self._column
        frame[top : top + DOT_SIDE, left : left + DOT_SIDE] = 255
        return frame
