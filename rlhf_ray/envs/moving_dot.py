"""MovingDot: move a dot to the centre of the image. The smallest task with image observations."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlhf_ray.envs.formula import Formula, KnownReward

IMAGE_SIDE = 64
DOT_SIDE = 4
STRIDE = 2
"""Pixels per action."""

_POSITIONS = (IMAGE_SIDE - DOT_SIDE) // STRIDE + 1
"""Positions per axis: the dot moves on a lattice of STRIDE pixels that includes the exact centre."""

_MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))
"""(rows, columns) on the lattice for stay, up, right, down, left."""


def nearness(observations: Any, actions: Any, next_observations: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Compute the reward, ``[n]``: minus the distance of the dot's centre from the image's, in units of 32 pixels.

    The centre is the mean position of all light, so that edited images have a reward too; that of a black image is -1.41.
    """
    light = next_observations[..., 0].astype(np.float64)
    places = np.arange(IMAGE_SIDE) - (IMAGE_SIDE - 1) / 2
    total = np.maximum(light.sum((1, 2)), 1e-9)
    rows, columns = (light.sum(axis) @ places / total for axis in (2, 1))
    distance = np.where(light.any((1, 2)), np.hypot(rows, columns), IMAGE_SIDE / np.sqrt(2))
    nearness: NDArray[np.float64] = -distance / (IMAGE_SIDE / 2)
    return nearness


class MovingDot(KnownReward):
    """One white 4x4 dot on black; registered as ``rlhf_ray/MovingDot-v0``, with episodes of exactly 100 steps.

    A smoke test for learning from images, after M. Rahtz's gym-moving-dot: a good policy is visible at a glance, and rendering
    a frame takes microseconds.

    * Observation: uint8 [64, 64, 3], 0 or 255.
    * Action: Discrete(5): 0 stay, 1 up, 2 right, 3 down, 4 left; by 2 pixels, up to the edge.
    * Reward: minus the distance, after the step, from the dot's centre to the image's centre, in units of 32 pixels:
      0 in the middle, -1.33 in a corner.
    * Start: uniformly random over the dot's 31 x 31 positions.

    The class never ends an episode; the registered id adds the time limit.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    formula = Formula("nearness", nearness, inputs=("next_state",))

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode of MovingDot is {render_mode!r}; it must be None or 'rgb_array'.")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(len(_MOVES))
        self._row = self._column = _POSITIONS // 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Put the dot at a random position."""
        super().reset(seed=seed, options=options)
        self._row, self._column = (int(place) for place in self.np_random.integers(_POSITIONS, size=2))
        return self._frame(), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the dot. Never terminates."""
        if not 0 <= action < len(_MOVES):
            raise ValueError(f"The action of MovingDot is {action}; it must be 0 to {len(_MOVES) - 1}.")
        rows, columns = _MOVES[action]
        self._row = min(max(self._row + rows, 0), _POSITIONS - 1)
        self._column = min(max(self._column + columns, 0), _POSITIONS - 1)
        frame = self._frame()
        return frame, float(nearness(None, None, frame[None])[0]), False, False, {}

    def describe(self) -> dict[str, float]:
        """Return the dot's position on the lattice, from the upper left corner."""
        return {"row": float(self._row), "column": float(self._column)}

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Return the current frame, uint8 [64, 64, 3], in render_mode "rgb_array"; else None."""
        return self._frame() if self.render_mode == "rgb_array" else None

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.zeros((IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
        top, left = STRIDE * self._row, STRIDE * self._column
        frame[top : top + DOT_SIDE, left : left + DOT_SIDE] = 255
        return frame
