"""Planted image reward: a coin touches the agent. An image whose rewarded region is known to the pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import Formula, FormulaReward

SIDE = 16
BLOCK = 3
"""Side of agent and coin in pixels."""
AGENT_COLOUR, COIN_COLOUR, STONE_COLOUR = (40, 90, 255), (255, 200, 0), (110, 110, 110)
DISTRACTOR_COLOURS = ((40, 255, 90), (90, 255, 40), (255, 40, 90), (0, 255, 200), (200, 0, 255), (255, 0, 200))
"""The numbers of the agent's and of the coin's colour in other channels: as bright, and neither agent nor coin."""

MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))
"""(rows, columns) of the actions: 0 stay, 1 up, 2 right, 3 down, 4 left."""

Position: TypeAlias = tuple[int, int]
Colour: TypeAlias = tuple[int, int, int]


class PlantedImage(gymnasium.Env[Array, np.int64]):
    """Move a blue agent to a yellow coin; a grey stone means nothing.

    Registered as ``rlhf_ray/PlantedImage-v0``, with episodes of 50 steps. A coin that was touched is gone a step later,
    and another one appears that doesn't touch the agent.

    * Observation: uint8 [16, 16, 3]: agent and coin are blocks of 3 x 3 pixels, the stone of 2 x 2 and behind them.
    * Action: Discrete(5): 0 stay, 1 up, 2 right, 3 down, 4 left, by one pixel. The stone moves at random.
    * Reward: 1 if agent and coin touch after the step, side by side or by a corner; else 0. It is a function of the next image.

    Args:
        distractors: number of blocks that mean nothing, as large and as bright as agent and coin, behind them. Each episode has
            them at other places and in other colours. With 0, agent and coin are the brightest of the image, and maps of an
            untrained network that follow the image's brightness point to them too.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    top = 0
    """First row of the game; what lies above shows something else."""

    def __init__(self, distractors: int = 0, render_mode: str | None = None) -> None:
        if distractors < 0:
            raise SettingError(f"distractors of {type(self).__name__} is {distractors}; it must be at least 0.")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(
                f"render_mode of {type(self).__name__} is {render_mode!r}; it must be None or 'rgb_array'."
            )
        self.distractors, self.render_mode = distractors, render_mode
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(len(MOVES))
        self.formula = Formula("the coin touches the agent", coin_touched, inputs=("next_state",))
        self._agent, self._coin, self._stone = (0, 0), (0, 0), (0, 0)
        self._distractors: list[tuple[Position, Colour]] = []
        self._touched = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Put everything at random places."""
        super().reset(seed=seed, options=options)
        self._agent, self._stone = self._place(BLOCK), self._place(BLOCK - 1)
        self._distractors = [
            (self._place(BLOCK), DISTRACTOR_COLOURS[int(self.np_random.integers(len(DISTRACTOR_COLOURS)))])
            for _ in range(self.distractors)
        ]
        self._new_coin()
        return self._frame(), {}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Move the agent and the stone, or replace a coin that was touched. Never terminates."""
        if not 0 <= action < len(MOVES):
            raise ValueError(f"The action of {type(self).__name__} is {action}; it must be 0 to {len(MOVES) - 1}.")
        self._agent = self._moved(self._agent, MOVES[action], BLOCK)
        self._stone = self._moved(self._stone, MOVES[int(self.np_random.integers(len(MOVES)))], BLOCK - 1)
        if self._touched:
            self._new_coin()
        self._touched = _apart(self._agent, self._coin) <= BLOCK
        self._count()
        after = self._frame()
        return after, self.formula.step(after, action, after, False), False, False, {}

    def render(self) -> Array | None:  # type: ignore[override]
        """Return the frame, 10 times enlarged, in render_mode "rgb_array"; else None."""
        return self._frame().repeat(10, 0).repeat(10, 1) if self.render_mode == "rgb_array" else None

    def observe(
        self,
        agent: Position | None = None,
        coin: Position | None = None,
        stone: Position | None = None,
        *,
        distractors: Sequence[tuple[Position, Colour]] = (),
    ) -> Array:
        """Build the image with objects whose upper left pixels are at (row, column); None leaves one out."""
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        drawn: list[tuple[Position | None, Colour, int]] = [
            (position, colour, BLOCK) for position, colour in distractors
        ]
        drawn += [(stone, STONE_COLOUR, BLOCK - 1), (coin, COIN_COLOUR, BLOCK), (agent, AGENT_COLOUR, BLOCK)]
        for position, colour, side in drawn:
            if position is not None:
                image[position[0] : position[0] + side, position[1] : position[1] + side] = colour
        return image

    def expert(self, rng: np.random.Generator) -> int:
        """Return an action towards the coin; on a touched coin, any."""
        down, right = self._coin[0] - self._agent[0], self._coin[1] - self._agent[1]
        if self._touched:
            return int(rng.integers(len(MOVES)))
        ways = ([3 if down > 0 else 1] if abs(down) > BLOCK else []) + (
            [2 if right > 0 else 4] if abs(right) > BLOCK else []
        )
        return int(rng.choice(ways))

    def describe(self) -> dict[str, float]:
        """Return the upper left pixels of the objects, and the distance of agent and coin: the larger of rows and columns apart."""
        return {
            "agent_row": float(self._agent[0]),
            "agent_column": float(self._agent[1]),
            "coin_row": float(self._coin[0]),
            "coin_column": float(self._coin[1]),
            "stone_row": float(self._stone[0]),
            "stone_column": float(self._stone[1]),
            "distance": float(_apart(self._agent, self._coin)),
        }

    def ground_truth(self) -> FormulaReward:
        """Return the reward of this environment as a reward function."""
        return FormulaReward(self.formula, self.observation_space, self.action_space)

    def _frame(self) -> Array:
        return self.observe(self._agent, self._coin, self._stone, distractors=self._distractors)

    def _count(self) -> None:
        """Hook of games with a score, called after each step's contact is known."""

    def _new_coin(self) -> None:
        self._coin, self._touched = self._place(BLOCK), False
        while _apart(self._agent, self._coin) <= BLOCK + 1:
            self._coin = self._place(BLOCK)

    def _place(self, side: int) -> Position:
        row, column = self.np_random.integers((self.top, 0), SIDE - side + 1).tolist()
        return row, column

    def _moved(self, at: Position, move: Position, side: int) -> Position:
        return (
            min(max(at[0] + move[0], self.top), SIDE - side),
            min(max(at[1] + move[1], 0), SIDE - side),
        )


def coin_touched(observations: Any, actions: Any, next_observations: Array) -> Array:
    """Compute the planted reward: 1 where agent and coin touch in the next image, ``[n]``; 0 where either is missing.

    Args:
        observations: not used.
        actions: not used.
        next_observations: ``[n, 16, 16, 3]``.
    """
    images = np.asarray(next_observations)
    agent = (images[..., 2] > 200) & (images[..., 0] < 100)
    coin = (images[..., 0] > 200) & (images[..., 2] < 50)
    rows, columns = (np.abs(_middle(agent, axis) - _middle(coin, axis)) for axis in (1, 2))
    both = agent.any((1, 2)) & coin.any((1, 2))
    touched: Array = 1.0 * (both & (np.maximum(rows, columns) <= BLOCK))
    return touched


def _middle(mask: BoolArray, axis: int) -> Array:
    """Mean row (axis 1) or column (axis 2) of a mask's pixels, ``[n]``."""
    counts = mask.sum(3 - axis)
    middle: Array = counts @ np.arange(mask.shape[axis]) / np.maximum(counts.sum(1), 1)
    return middle


def _apart(one: Position, other: Position) -> int:
    return max(abs(one[0] - other[0]), abs(one[1] - other[1]))
