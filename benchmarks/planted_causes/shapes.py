"""A small image world: squares and crosses, red or blue. One action is right for squares; the colour tells them in most levels."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.envs.batch import BatchStep

STEPS, SIDE = 10, 12
AGREE = 0.75
"""Share of objects whose colour tells their shape: red for squares."""
PARTS = {
    "square": [(row, column) for row in range(1, 4) for column in range(1, 4)],
    "cross": [(2, column) for column in range(5)] + [(row, 2) for row in (0, 1, 3, 4)],
}
"""Two shapes of nine pixels each, by (row, column)."""
RED, BLUE = (250, 40, 40), (40, 40, 250)
FIELDS = [("shown", "i1", (STEPS + 1, 4)), ("step", "<i4")]


def drawn(square: bool, red: bool, row: int, column: int, frame: Array) -> BoolArray:
    """Draw an object into ``frame``, its upper left corner at ``row`` and ``column``; return which pixels it has."""
    mask = np.zeros(frame.shape[:2], bool)
    for down, right in PARTS["square" if square else "cross"]:
        mask[row + down, column + right] = True
    frame[mask] = RED if red else BLUE
    return mask


class Shapes:
    """Copies of the world: an `rlhf_ray.envs.batch.EnvBatch`. Each step shows another object; action 1 for a square is worth 1."""

    def __init__(self, n: int):
        self.name, self.n = "Shapes", n
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(2)
        self.action_names = ["pass", "take"]
        self.edits = {"swap_colour": "paints the object in the other colour", "swap_shape": "gives it the other shape"}

    def reset(self, levels: Sequence[int]) -> Array:
        """Draw the objects of each level: shape, colour, row and column."""
        self.state = np.zeros(self.n, FIELDS)
        for row, level in enumerate(levels):
            rng = np.random.default_rng(level)
            square = rng.random(STEPS + 1) < 0.5
            red = np.where(rng.random(STEPS + 1) < AGREE, square, ~square)
            corner = rng.integers(0, SIDE - 4, (STEPS + 1, 2))
            self.state["shown"][row] = np.stack([square, red, *corner.T], 1)
        return self._seen()

    def step(self, actions: Array) -> BatchStep:
        """Pay for action 1 at squares and for action 0 at crosses."""
        going = self.state["step"] < STEPS
        rewards = np.where(going & (np.asarray(actions) == self._now()[:, 0]), 1.0, 0.0)
        self.state["step"] += going
        over = self.state["step"] >= STEPS
        causes = ["timeout" if each else "" for each in over]
        return BatchStep(self._seen(), rewards, np.zeros(self.n, bool), over, causes)

    def states(self) -> list[bytes]:
        """See `EnvBatch.states`."""
        return [row.tobytes() for row in self.state]

    def restore(self, states: Sequence[bytes]) -> Array:
        """See `EnvBatch.restore`."""
        self.state = np.frombuffer(b"".join(states), FIELDS).copy()
        return self._seen()

    def describe(self) -> dict[str, Array]:
        """Return shape and colour."""
        now = self._now()
        return {"square": now[:, 0] > 0, "red": now[:, 1] > 0}

    def masks(self) -> dict[str, BoolArray]:
        """Return where the object is."""
        empty = np.zeros((SIDE, SIDE, 3), np.uint8)
        return {"object": np.stack([drawn(*now, empty.copy()) for now in self._now()])}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        """Exchange colour or shape."""
        at = np.flatnonzero(np.ones(self.n, bool) if rows is None else rows)
        self.state["shown"][at, np.minimum(self.state["step"][at], STEPS), int(name == "swap_colour")] ^= 1
        return self._seen()

    def close(self) -> None:
        """Nothing to close."""

    def _now(self) -> Array:
        now: Array = self.state["shown"][np.arange(self.n), np.minimum(self.state["step"], STEPS)]
        return now

    def _seen(self) -> Array:
        frames = np.full((self.n, SIDE, SIDE, 3), 20, np.uint8)
        for frame, now in zip(frames, self._now(), strict=True):
            drawn(*now, frame)
        return frames
