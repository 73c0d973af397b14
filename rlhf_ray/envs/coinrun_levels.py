"""What is in a level of coinrun, where it is in the image, and edits of the level."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, IntArray
from rlhf_ray.envs.procgen_state import ENTITY, SPACE, GameState

COIN, SAW, ENEMY, CRATE = 1, 2, 5, 20
WALL_MID, WALL_TOP, LAVA_MID, LAVA_TOP, BARRIER = 15, 16, 17, 18, 19
"""Types. Coin, walls, lava and the invisible barriers of enemies are cells of the grid; the rest are entities."""

PIXELS = 64
NEAR = 4.0
"""Distance in cells up to which something is ahead."""
FAR = 64.0
"""Distance of what is not there."""


def describe(state: GameState) -> dict[str, float]:
    """Return what is around the agent: distances in cells, and 1 or 0 for what is so or not."""
    agent, coin = state.agent, _coin(state)
    dx, dy = (coin[0] + 0.5 - agent["x"], coin[1] + 0.5 - agent["y"]) if coin else (FAR, FAR)
    facts = {
        "on_ground": float(struct.unpack_from("<i", state.own, 8)[0]),
        "coin_x": coin[0] + 0.5 if coin else FAR,
        "coin_y": coin[1] + 0.5 if coin else FAR,
        "coin_distance": math.hypot(dx, dy) if coin else FAR,
        "coin_visible": float(coin is not None and _in_view(state, coin[0] + 0.5, coin[1] + 0.5)),
    }
    places = {"saw": _places(state, SAW), "enemy": _places(state, ENEMY), "lava": _lava(state)}
    for name, (x, y) in places.items():
        ahead = _ahead(state, x, y)
        nearest = float((x - agent["x"])[ahead].min(initial=FAR))
        facts[f"{name}_distance"] = nearest
        facts[f"{name}_ahead"] = float(nearest <= NEAR)
    return facts


def danger(state: GameState) -> str:
    """Return what most likely ends the episode in the next step: the nearest of saws, enemies and lava."""
    agent, nearest = state.agent, {}
    places = {"saw": _places(state, SAW), "enemy": _places(state, ENEMY), "lava": _lava(state)}
    for name, (x, y) in places.items():
        distance = np.maximum(np.abs(x - agent["x"] - agent["vx"]), np.abs(y - agent["y"] - agent["vy"]))
        nearest[name] = float(distance.min(initial=FAR))
    return min(nearest, key=nearest.__getitem__)


def masks(state: GameState) -> dict[str, BoolArray]:
    """Return where each kind of object is in the image, ``[64, 64]`` by name, as rectangles."""
    masks = {name: np.zeros((PIXELS, PIXELS), bool) for name in ("coin", "saw", "enemy", "crate", "lava")}
    for name, kind in (("saw", SAW), ("enemy", ENEMY), ("crate", CRATE)):
        for entity in state.entities[state.entities["type"] == kind]:
            _fill(
                masks[name],
                state,
                entity["x"] - entity["rx"],
                entity["y"] - entity["ry"],
                2 * entity["rx"],
                2 * entity["ry"],
            )
    cells = {"coin": (COIN,), "lava": (LAVA_MID, LAVA_TOP)}
    for name, kinds in cells.items():
        for row, column in np.argwhere(np.isin(state.grid, kinds)):
            _fill(masks[name], state, column, row, 1.0, 1.0)
    return masks


def edit(state: GameState, name: str) -> bytes:
    """Return the state with the level edited; unchanged if there is nothing to edit."""
    return _EDITS[name][1](state)


def _coin(state: GameState) -> tuple[int, int] | None:
    """Return column and row of the coin; None without one."""
    places = np.argwhere(state.grid == COIN)
    return (int(places[0, 1]), int(places[0, 0])) if len(places) else None


def _places(state: GameState, kind: int) -> tuple[Array, Array]:
    chosen = state.entities[state.entities["type"] == kind]
    return chosen["x"], chosen["y"]


def _lava(state: GameState) -> tuple[Array, Array]:
    cells = np.argwhere(np.isin(state.grid, (LAVA_MID, LAVA_TOP)))
    return cells[:, 1] + 0.5, cells[:, 0] + 0.5


def _in_view(state: GameState, x: Array | float, y: Array | float) -> BoolArray:
    return (np.abs(np.asarray(x) - state.center[0]) < state.view / 2) & (
        np.abs(np.asarray(y) - state.center[1]) < state.view / 2
    )


def _ahead(state: GameState, x: Array, y: Array) -> BoolArray:
    """Return which places are in view and right of the agent."""
    ahead: BoolArray = _in_view(state, x, y) & (x > state.agent["x"])
    return ahead


def _fill(mask: BoolArray, state: GameState, left: float, bottom: float, width: float, height: float) -> None:
    scale = PIXELS / state.view
    x = (left - state.center[0] + state.view / 2) * scale
    y = (state.center[1] + state.view / 2 - bottom - height) * scale
    rows = slice(max(0, round(y)), max(0, round(y + height * scale)))
    mask[rows, max(0, round(x)) : max(0, round(x + width * scale))] = True


def _without(kind: int, nearest: bool) -> Callable[[GameState], bytes]:
    def apply(state: GameState) -> bytes:
        drop = state.entities["type"] == kind
        if nearest:
            drop &= _ahead(state, state.entities["x"], state.entities["y"])
            distances = np.where(drop, state.entities["x"] - state.agent["x"], np.inf)
            drop &= np.arange(len(drop)) == distances.argmin()
        return state.with_entities(state.entities[~drop])

    return apply


def _with_grid(change: Callable[[GameState, IntArray], None]) -> Callable[[GameState], bytes]:
    def apply(state: GameState) -> bytes:
        grid = state.grid.copy()
        change(state, grid)
        return state.with_grid(grid)

    return apply


def _fill_lava(state: GameState, grid: IntArray) -> None:
    grid[grid == LAVA_MID], grid[grid == LAVA_TOP] = WALL_MID, WALL_TOP


def _remove_coin(state: GameState, grid: IntArray) -> None:
    grid[grid == COIN] = SPACE


def _move_coin(state: GameState, grid: IntArray) -> None:
    coin = _coin(state)
    if coin is None:
        return
    middle = (float(state.agent["x"]) + coin[0]) / 2
    columns = [column for column in range(int(state.agent["x"]) + 2, coin[0]) if _ground(state, column) is not None]
    if columns:
        column = min(columns, key=lambda each: abs(each + 0.5 - middle))
        grid[coin[1], coin[0]] = SPACE
        grid[_ground(state, column), column] = COIN


def _add_saw(state: GameState) -> bytes:
    first = int(state.agent["x"]) + 3
    for column in range(first, first + int(state.view / 2)):
        if (row := _ground(state, column)) is not None:
            saw = np.zeros(1, ENTITY)
            saw["x"], saw["y"], saw["rx"], saw["ry"] = column + 0.5, row + 0.5, 0.5, 0.5
            saw["type"] = saw["image_type"] = SAW
            for name in ("fire", "spawn", "expire"):
                saw[name] = -1
            for name in ("friction", "auto_erase", "alpha", "health", "grow", "decay"):
                saw[name] = 1
            saw["theta"] = -100
            return state.with_entities(np.concatenate([state.entities, saw]))
    return state.raw


def _ground(state: GameState, column: int) -> int | None:
    """Return the row of the free cell on the ground of a column; None if there is none, or something is in the way."""
    if not 0 < column < state.grid.shape[1] - 1:
        return None
    cells = state.grid[:, column]
    free = np.flatnonzero(np.isin(cells, (SPACE, BARRIER)))
    if not len(free) or free[0] == 0 or cells[free[0] - 1] not in (WALL_MID, WALL_TOP):
        return None
    x, y = column + 0.5, free[0] + 0.5
    taken = (np.abs(state.entities["x"] - x) < 1) & (np.abs(state.entities["y"] - y) < 1)
    return None if taken.any() else int(free[0])


_EDITS: dict[str, tuple[str, Callable[[GameState], bytes]]] = {
    "remove_saw": ("Removes the nearest saw in view ahead of the agent.", _without(SAW, nearest=True)),
    "remove_enemy": ("Removes the nearest enemy in view ahead of the agent.", _without(ENEMY, nearest=True)),
    "remove_saws": ("Removes all saws of the level.", _without(SAW, nearest=False)),
    "remove_enemies": ("Removes all enemies of the level.", _without(ENEMY, nearest=False)),
    "remove_crates": ("Removes all crates of the level.", _without(CRATE, nearest=False)),
    "fill_lava": ("Turns all lava of the level into ground.", _with_grid(_fill_lava)),
    "add_saw": ("Puts a saw on the ground, 3 cells ahead of the agent or further if there is no room.", _add_saw),
    "remove_coin": ("Removes the coin: the level can't be solved.", _with_grid(_remove_coin)),
    "move_coin": ("Moves the coin to the ground half-way between the agent and where it is.", _with_grid(_move_coin)),
}
EDITS = {name: does for name, (does, _) in _EDITS.items()}
"""What each edit does."""
