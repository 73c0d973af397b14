"""MiniRun: run to a coin, over saws and pits. A small CoinRun (Cobbe et al. 2019) whose causes are known."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import checked_option

from . import runner
from .level_envs import LevelEnv, LevelVectorEnv
from .levels import LevelBatch

REWARD = 10.0
FIRST_COIN = 5
"""Leftmost cell of a random coin."""
NEAR = 3
"""Cells ahead that saw_ahead and pit_ahead look at."""

_LEFT, _RIGHT, _NOOP, _JUMP, _JUMP_RIGHT = range(5)
_DX = np.array([-1, 1, 0, 0, 1])
_PIT, _SAW, _COIN = range(4, 7)
_COIN_ROW = runner.STANDING - 1

Coin = Literal["random", "end"]


class MiniRunBatch(LevelBatch):
    """Copies of MiniRun; registered as ``rlhf_ray/MiniRun-v0``.

    The view is 8 x 8 cells, two of them behind the agent. Between saws and pits, of one or two cells, are three to five free cells.
    A jump has heights 1, 2, 2, 1, 0 in its five steps, and the agent can steer in the air. The two frames of its top look alike,
    and so do rising and falling: how a jump goes on is known only from memory. The coin hangs one cell above the ground; running
    below it and jumping over it both take it.

    * Actions: 0 left, 1 right, 2 noop, 3 jump, 4 jump_right.
    * Reward: 10 for the coin; it ends the episode, as do saws and pits, for nothing. Limit: 60 steps.
    * A random coin is uniform over the cells from 5 to the level's end. If it is always at the end, PPO finds no reward at all in
      600,000 steps.

    Args:
        n: number of copies.
        length: cells of a level.
        coin: where it is: "random", or "end", always at the level's end.
        max_episode_steps: time limit.

    Attributes:
        length: see above.
    """

    name = "rlhf_ray/MiniRun-v0"
    action_names = ("left", "right", "noop", "jump", "jump_right")
    causes = ("saw", "pit", "coin")
    edits = {  # noqa: RUF012
        "remove_saw": "Removes the nearest saw in view ahead of the agent.",
        "remove_pit": "Closes the nearest pit in view ahead of the agent.",
        "remove_coin": "Removes the coin.",
        "move_coin": "Moves the coin half a level on (a level's start follows its end), to the next free cell.",
    }
    kinds = runner.COLOURS | {
        "pit": runner.COLOURS["sky"],  # a pit is where the ground is missing
        "saw": (((90, 90, 100), (225, 225, 230)), ((225, 225, 230), (90, 90, 100))),
        "coin": (250, 210, 30),
    }

    def __init__(self, n: int, length: int = 24, coin: Coin = "random", max_episode_steps: int = 60):
        if length < 12:
            raise SettingError(f"length of MiniRun is {length}; it must be at least 12.")
        checked_option("coin", coin, Coin, "MiniRun")
        self.length, self.coin = length, coin
        self._hazards = length // 4
        fields = [("x", "<i2"), ("phase", "i1"), ("coin", "<i2"), ("saw", "?", (length,)), ("pit", "?", (length,))]
        super().__init__(n, fields, 1 + 2 * self._hazards, max_episode_steps, length=length, coin=coin)

    def draw(self, state: Array, random: FloatArray) -> None:
        """Draw hazards, the first in the cells 3 to 5, and the coin, which removes the hazard below it."""
        length, rows = self.length, np.arange(len(state))[:, None]
        span = length - FIRST_COIN
        coin = (
            FIRST_COIN + (random[:, 0] * span).astype(int) if self.coin == "random" else np.full(len(state), length - 1)
        )
        gap, kind = random[:, 1 : 1 + self._hazards], random[:, 1 + self._hazards :]
        wide = kind >= 0.75
        starts = (4 + (gap * 3).astype(int)).cumsum(1) + wide.cumsum(1) - wide - 1
        saws, pits = (np.zeros((len(state), length + 1), bool) for _ in range(2))
        saws[rows, np.minimum(starts, length)] = kind < 0.5
        pits[rows, np.minimum(starts, length)] = kind >= 0.5
        pits[rows, np.minimum(starts + wide, length)] |= kind >= 0.5
        state["coin"] = coin
        state["saw"], state["pit"] = saws[:, :length], pits[:, :length]
        state["saw"][rows[:, 0], coin] = state["pit"][rows[:, 0], coin] = False

    def act(self, state: Array, actions: IntArray) -> tuple[FloatArray, IntArray]:
        """Move; see `LevelBatch.act`."""
        heights = runner.move(state, _DX[actions], actions >= _JUMP, self.length)
        rows, x, down = np.arange(len(state)), state["x"], heights == 0
        won = x == state["coin"]
        ends = np.where(won, 3, np.where(down & state["saw"][rows, x], 1, np.where(down & state["pit"][rows, x], 2, 0)))
        return REWARD * won, ends

    def codes(self, state: Array) -> IntArray:
        """See `LevelBatch.codes`. An agent that fell is in the pit."""
        seen, inside = runner.columns(state, self.length)
        rows = np.arange(len(state))[:, None]
        codes = runner.scene(state, inside)
        pits = state["pit"][rows, seen] & inside
        codes[:, runner.STANDING + 1 :] = np.where(pits[:, None], _PIT, codes[:, runner.STANDING + 1 :])
        ground = codes[:, runner.STANDING]
        ground[state["saw"][rows, seen] & inside] = _SAW
        codes[:, _COIN_ROW][(seen == state["coin"][:, None]) & inside] = _COIN
        runner.put_agent(codes, runner.HEIGHTS[state["phase"]] - (state["end"] == 2))
        return codes

    def concepts(self, state: Array) -> dict[str, Array]:
        """Return what is known about each copy.

        ``saw_ahead``, ``pit_ahead``: in the next three cells. ``coin_visible``: whether the coin is in view. ``coin_distance``:
        cells to the coin, negative behind the agent; NaN without a coin. ``jump_phase``: 0 on the ground, 1 to 4 in the air.
        ``first_apex``: 1 at the first, 0 at the second of the two steps at the top; NaN elsewhere. ``height``, ``x``: in cells.
        """
        distance = np.where(state["coin"] < 0, np.nan, state["coin"] - state["x"].astype(float)).astype(np.float32)
        phase = state["phase"].astype(np.float32)
        return {
            "saw_ahead": runner.ahead(state["saw"], state, NEAR) >= 0,
            "pit_ahead": runner.ahead(state["pit"], state, NEAR) >= 0,
            "coin_visible": (distance >= -runner.BEHIND) & (distance <= runner.AHEAD),
            "coin_distance": distance,
            "jump_phase": phase,
            "first_apex": np.where(phase == 2, 1.0, np.where(phase == 3, 0.0, np.nan)).astype(np.float32),
            "height": runner.HEIGHTS[state["phase"]].astype(np.float32),
            "x": state["x"].astype(np.float32),
        }

    def plan(self, state: Array) -> BoolArray:
        """Return the actions on a shortest safe way to the coin; all without one."""
        goals, deadly = (np.zeros((len(state), self.length, runner.JUMPS), bool) for _ in range(2))
        there = np.flatnonzero(state["coin"] >= 0)
        goals[there, state["coin"][there]] = True
        deadly[:, :, 0] = state["saw"] | state["pit"]
        return runner.plan(state, goals, deadly, _DX, np.arange(len(_DX)) >= _JUMP)

    def _edit_remove_saw(self, state: Array) -> None:
        cells = runner.ahead(state["saw"], state, runner.AHEAD)
        rows = np.flatnonzero(cells >= 0)
        state["saw"][rows, cells[rows]] = False

    def _edit_remove_pit(self, state: Array) -> None:
        at = runner.ahead(state["pit"], state, runner.AHEAD)
        for row in np.flatnonzero(at >= 0):
            cells = state["pit"][row]
            end = at[row]
            while end < self.length and cells[end]:
                cells[end] = False
                end += 1

    def _edit_remove_coin(self, state: Array) -> None:
        state["coin"] = -1

    def _edit_move_coin(self, state: Array) -> None:
        for row in np.flatnonzero(state["coin"] >= 0):
            cells = (state["coin"][row] + self.length // 2 + np.arange(self.length)) % self.length
            taken = state["saw"][row] | state["pit"][row]
            taken[state["x"][row]] = True
            state["coin"][row] = cells[~taken[cells]][0]


class MiniRun(LevelEnv):
    """One MiniRun; see `MiniRunBatch`."""

    batch_class = MiniRunBatch


class MiniRunVectorEnv(LevelVectorEnv):
    """Copies of MiniRun with next-step autoreset; see `MiniRunBatch`."""

    batch_class = MiniRunBatch
