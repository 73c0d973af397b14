"""StaticBounce: a world that is wholly in view and wholly deterministic, for predictions over long horizons."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray

from .level_envs import LevelEnv, LevelVectorEnv
from .levels import CELLS, LevelBatch

COIN_REWARD, ENEMY_REWARD = 1.0, -1.0
RESAMPLE = 0.4
"""How often sticky random actions change."""

_MOVES = np.array([(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)])
"""(rows, columns) of the actions."""
_FLOOR, _AGENT, _ENEMY, _COIN = range(4)


class StaticBounceBatch(LevelBatch):
    """Copies of StaticBounce; registered as ``rlhf_ray/StaticBounce-v0``.

    An agent, a coin and an enemy on 8 x 8 cells. The enemy runs diagonally and bounces off the edges; every 14 steps it is where it
    was. Nothing is random but the start: after a coin is taken, the next one lies at the point opposite. Only the limit of 60 steps
    ends an episode. One frame doesn't show where the enemy runs; two do.

    * Actions: 0 noop, 1 up, 2 right, 3 down, 4 left. For data whose future depends on the actions, use `sticky_actions`.
    * Reward: 1 for taking the coin, -1 for each step in the enemy's cell.

    Args:
        n: number of copies.
        max_episode_steps: length of an episode.
    """

    name = "rlhf_ray/StaticBounce-v0"
    action_names = ("noop", "up", "right", "down", "left")
    causes = ()
    edits = {  # noqa: RUF012
        "remove_enemy": "Removes the enemy.",
        "move_coin": "Moves the coin to the point opposite.",
    }
    kinds = {  # noqa: RUF012
        "floor": (24, 28, 48),
        "agent": (240, 240, 240),
        "enemy": (230, 60, 60),
        "coin": (250, 210, 30),
    }

    def __init__(self, n: int, max_episode_steps: int = 60):
        place = ("<i2", (2,))
        fields = [("agent", *place), ("enemy", *place), ("velocity", *place), ("coin", *place), ("enemy_gone", "?")]
        super().__init__(n, fields, 8, max_episode_steps)

    def draw(self, state: Array, random: FloatArray) -> None:
        """Draw places of all three, the coin's not the agent's, and where the enemy runs."""
        cells = (random[:, :6] * CELLS).astype(int)
        state["agent"], state["enemy"], state["coin"] = cells[:, :2], cells[:, 2:4], cells[:, 4:]
        state["velocity"] = np.where(random[:, 6:] < 0.5, -1, 1)
        same = (state["agent"] == state["coin"]).all(1)
        state["coin"][same] = CELLS - 1 - state["coin"][same]

    def act(self, state: Array, actions: IntArray) -> tuple[FloatArray, IntArray]:
        """Move; see `LevelBatch.act`."""
        last = CELLS - 1
        state["agent"] = agent = np.clip(state["agent"] + _MOVES[actions], 0, last)
        after = state["enemy"] + state["velocity"]
        bounces = (after < 0) | (after > last)
        state["velocity"] = np.where(bounces, -state["velocity"], state["velocity"])
        state["enemy"] = enemy = state["enemy"] + state["velocity"]
        taken = (agent == state["coin"]).all(1)
        state["coin"] = np.where(taken[:, None], last - state["coin"], state["coin"])
        hit = (agent == enemy).all(1) & ~state["enemy_gone"]
        return COIN_REWARD * taken + ENEMY_REWARD * hit, np.zeros(len(state), int)

    def codes(self, state: Array) -> IntArray:
        """See `LevelBatch.codes`. The agent hides the enemy, and the enemy the coin."""
        codes = np.full((len(state), CELLS, CELLS), _FLOOR)
        rows = np.arange(len(state))
        codes[rows, state["coin"][:, 0], state["coin"][:, 1]] = _COIN
        here = ~state["enemy_gone"]
        codes[rows[here], state["enemy"][here, 0], state["enemy"][here, 1]] = _ENEMY
        codes[rows, state["agent"][:, 0], state["agent"][:, 1]] = _AGENT
        return codes

    def concepts(self, state: Array) -> dict[str, Array]:
        """Return rows and columns of all three, the enemy's direction, and the distances in steps; NaN without an enemy."""
        gone = state["enemy_gone"]
        values: dict[str, Array] = {}
        for name in ("agent", "enemy", "coin"):
            for axis, part in enumerate(("row", "column")):
                values[f"{name}_{part}"] = state[name][:, axis].astype(np.float32)
        values["enemy_down"], values["enemy_right"] = state["velocity"][:, 0] > 0, state["velocity"][:, 1] > 0
        for name in ("coin", "enemy"):
            values[f"{name}_distance"] = np.abs(state[name] - state["agent"]).sum(1).astype(np.float32)
        for name in ("enemy_row", "enemy_column", "enemy_distance"):
            values[name][gone] = np.nan
        return values

    def plan(self, state: Array) -> BoolArray:
        """Return the actions that shorten the way to the coin without stepping on the enemy; if there are none, the safe ones."""
        after = np.clip(state["agent"][:, None] + _MOVES, 0, CELLS - 1)
        moving = state.copy()
        self.act(moving, np.zeros(len(state), int))
        safe = (after != moving["enemy"][:, None]).any(2) | state["enemy_gone"][:, None]
        left = np.abs(after - state["coin"][:, None]).sum(2)
        closer = safe & (left < np.abs(state["agent"] - state["coin"]).sum(1)[:, None])
        best: BoolArray = np.where(closer.any(1)[:, None], closer, safe)
        return best

    def _edit_remove_enemy(self, state: Array) -> None:
        state["enemy_gone"] = True

    def _edit_move_coin(self, state: Array) -> None:
        state["coin"] = CELLS - 1 - state["coin"]


def sticky_actions(rng: np.random.Generator, n: int, steps: int) -> IntArray:
    """Draw random actions ``[n, steps]`` that often go on: each step draws anew with probability 0.4."""
    drawn = rng.integers(len(_MOVES), size=(n, steps))
    again = rng.random((n, steps)) >= RESAMPLE
    for step in range(1, steps):
        drawn[:, step] = np.where(again[:, step], drawn[:, step - 1], drawn[:, step])
    return drawn


class StaticBounce(LevelEnv):
    """One StaticBounce; see `StaticBounceBatch`."""

    batch_class = StaticBounceBatch


class StaticBounceVectorEnv(LevelVectorEnv):
    """Copies of StaticBounce with next-step autoreset; see `StaticBounceBatch`."""

    batch_class = StaticBounceBatch
