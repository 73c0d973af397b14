"""Procgen's saved state, read and edited: where agent and objects are, and what lies in the grid.

The layout is that of version 0.10 (``serialize`` in its game.cpp, basic-abstract-game.cpp, entity.cpp and the game's own file). All
numbers have 4 bytes, little-endian; a text follows its length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, IntArray

PLAYER, SPACE = 0, 100
"""Type of the agent's entity; grid cell without anything."""

SETTINGS, LEVEL_LOW = 17, 13
"""Number of settings; that of the first level to draw, which the end of the range follows."""

NO_TIME_LIMIT = 2**30
UNKNOWN_LAYOUT = "Procgen's saved state doesn't have the layout of version 0.10 ({}). Install procgen-mirror==0.10.7."

ENTITY = np.dtype(
    [(name, "<f4") for name in ("x", "y", "vx", "vy", "rx", "ry")]
    + [(name, "<i4") for name in ("type", "image_type", "image_theme", "render_z", "will_erase", "collides")]
    + [(name, "<f4") for name in ("margin", "rotation", "vrot")]
    + [(name, "<i4") for name in ("reflected", "fire", "spawn", "life", "expire", "absolute")]
    + [("friction", "<f4"), *((name, "<i4") for name in ("smart", "avoids", "auto_erase"))]
    + [(name, "<f4") for name in ("alpha", "health", "theta", "grow", "decay", "climber")]
)
"""One entity; positions and sizes in cells, with y upwards."""


def with_level(state: bytes, level: int) -> bytes:
    """Return the state of a game whose next level will be ``level``."""
    offset = 8 + struct.unpack_from("<i", state, 4)[0] + 4 * LEVEL_LOW
    return state[:offset] + struct.pack("<ii", level, level + 1) + state[offset + 8 :]


@dataclass(frozen=True)
class GameState:
    """A saved state, parsed.

    Attributes:
        raw: the whole state.
        time: steps of the level so far.
        entities: of dtype `ENTITY`.
        entities_at: where their number is.
        grid: types of the cells, ``[height, width]``, row 0 at the bottom.
        grid_at: where the cells are.
        view: width of what the image shows, in cells.
        center: ``(x, y)`` of the middle of the image.
        own: what the game itself adds.
    """

    raw: bytes
    time: int
    entities: Array
    entities_at: int
    grid: IntArray
    grid_at: int
    view: float
    center: tuple[float, float]
    own: bytes

    @staticmethod
    def parse(raw: bytes) -> GameState:
        """Parse a state of procgen's ``get_state()``.

        Raises:
            RuntimeError: it doesn't have the layout of version 0.10.
        """
        try:
            return _parse(raw)
        except (struct.error, ValueError) as error:
            raise RuntimeError(UNKNOWN_LAYOUT.format(error)) from error

    @property
    def agent(self) -> Any:
        """The agent's entity."""
        return self.entities[self.entities["type"] == PLAYER][0]

    def with_entities(self, entities: Array) -> bytes:
        """Return the state with other entities."""
        end = self.entities_at + 4 + self.entities.nbytes
        return self.raw[: self.entities_at] + struct.pack("<i", len(entities)) + entities.tobytes() + self.raw[end:]

    def with_grid(self, grid: IntArray) -> bytes:
        """Return the state with another grid of the same size."""
        content = np.ascontiguousarray(grid, "<i4").tobytes()
        return self.raw[: self.grid_at] + content + self.raw[self.grid_at + len(content) :]


def without_time_limit(states: Sequence[bytes], game: str) -> tuple[int, list[bytes]]:
    """Remove the time limit from saved states.

    Args:
        states: from procgen's ``get_state()``, one per copy of the game.
        game: the game's name, which the states must contain.

    Returns:
        The smallest original time limit, in steps, and the states with a limit of 2**30.

    Raises:
        RuntimeError: the states don't have the layout of version 0.10.
    """
    limits, lifted = [], []
    for state in states:
        try:
            at = _numbers_at(state) + 4 * 4
            (limit,) = struct.unpack_from("<i", state, at)
            if limit <= 0 or state[8 : 8 + len(game)] != game.encode() or state[:4] != bytes(4):
                raise ValueError(f"a time limit of {limit} steps in {game}")
        except (struct.error, ValueError) as error:
            raise RuntimeError(UNKNOWN_LAYOUT.format(error)) from error
        limits.append(int(limit))
        lifted.append(state[:at] + struct.pack("<i", NO_TIME_LIMIT) + state[at + 4 :])
    return min(limits), lifted


def _after_text(raw: bytes, at: int) -> int:
    (length,) = struct.unpack_from("<i", raw, at)
    if not 0 <= length <= len(raw):
        raise ValueError(f"a text of {length} bytes at {at}")
    return int(at + 4 + length)


def _numbers_at(raw: bytes) -> int:
    """Where the game's numbers begin: reward, done, level complete, action, time limit and others."""
    at = _after_text(raw, 4) + 4 * SETTINGS
    for _ in range(2):  # generators of levels and of the game: whether seeded, and their text
        at = _after_text(raw, at + 4)
    return at


def _parse(raw: bytes) -> GameState:
    def number(at: int, kind: str = "i") -> Any:
        return struct.unpack_from(f"<{kind}", raw, at)[0]

    at = _numbers_at(raw)
    time = number(at + 4 * 13)
    entities_at = at + 4 * 15 + 4  # after 15 numbers of the game, and the size of the grid's cells
    count = number(entities_at)
    if not 0 < count <= len(raw) // ENTITY.itemsize:
        raise ValueError(f"{count} entities at {entities_at}")
    entities = np.frombuffer(raw, ENTITY, count, entities_at + 4)
    at = entities_at + 4 + entities.nbytes
    center = number(at + 4 * 14, "f"), number(at + 4 * 15, "f")
    at = _after_text(raw, at + 4 * 19 + 4)  # 19 numbers, and the generator of assets
    view = number(at + 4 * 4, "f")
    at += 4 * 9
    width, height, cells = struct.unpack_from("<iii", raw, at)
    if width * height != cells:
        raise ValueError(f"a grid of {width} x {height} with {cells} cells at {at}")
    grid = np.frombuffer(raw, "<i4", cells, at + 12).reshape(height, width)
    return GameState(raw, time, entities, entities_at, grid, at + 12, view, center, raw[at + 12 + grid.nbytes :])
