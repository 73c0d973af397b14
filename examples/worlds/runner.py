"""Runner: what MiniRun and CueRun share. An agent runs to the right and jumps; the view scrolls with it."""

from __future__ import annotations

import functools

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray

from .levels import CELLS

BEHIND = 2
"""Cells in view behind the agent: it is in this column."""
AHEAD = CELLS - 1 - BEHIND
"""Cells in view ahead of it."""
STANDING = 5
"""Row of an agent on the ground; the ground is below."""
HEIGHTS = np.array([0, 1, 2, 2, 1])
"""Height of the agent in each phase of a jump; phase 0 is on the ground, and a jump ends there after five steps."""

JUMPS = len(HEIGHTS)
SKY, GROUND, WALL, AGENT = range(4)
"""Codes of cells that all runners have."""
COLOURS = {
    "sky": (104, 178, 232),
    "ground": (110, 72, 40),
    "wall": (60, 44, 36),
    "agent": (((250, 250, 250), (250, 250, 250)), ((200, 30, 120), (200, 30, 120))),
}


def move(state: Array, dx: IntArray, jump: BoolArray, length: int) -> IntArray:
    """Move agents in place by ``dx`` ``[n]`` along a level, and start or continue jumps; return their heights ``[n]``."""
    phase = state["phase"]
    state["phase"] = phase = np.where(phase > 0, (phase + 1) % JUMPS, jump)
    state["x"] = np.clip(state["x"] + dx, 0, length - 1)
    heights: IntArray = HEIGHTS[phase]
    return heights


def columns(state: Array, length: int) -> tuple[IntArray, BoolArray]:
    """Return the level's cells in view, ``[n, 8]``, clipped to the level, and which are inside it."""
    seen = state["x"].astype(np.int64)[:, None] + np.arange(-BEHIND, CELLS - BEHIND)
    return np.clip(seen, 0, length - 1), (seen >= 0) & (seen < length)


def scene(state: Array, inside: BoolArray) -> IntArray:
    """Return codes ``[n, 8, 8]`` of sky, ground and the walls at the level's ends."""
    codes = np.full((len(state), CELLS, CELLS), SKY, np.int64)
    codes[:, STANDING + 1 :] = GROUND
    return np.where(inside[:, None], codes, WALL)


def put_agent(codes: IntArray, heights: IntArray) -> None:
    """Put the agents into ``codes``."""
    codes[np.arange(len(codes)), STANDING - heights, BEHIND] = AGENT


def ahead(marks: BoolArray, state: Array, reach: int) -> IntArray:
    """Return the nearest of the ``marks`` ``[n, length]`` in the ``reach`` cells ahead of each agent, ``[n]``; -1 without one."""
    length = marks.shape[1]
    cells = state["x"].astype(np.int64)[:, None] + np.arange(1, reach + 1)
    marked = marks[np.arange(len(marks))[:, None], np.minimum(cells, length - 1)] & (cells < length)
    nearest: IntArray = np.where(marked.any(1), cells[np.arange(len(cells)), marked.argmax(1)], -1)
    return nearest


def plan(state: Array, goals: BoolArray, deadly: BoolArray, dx: IntArray, jump: BoolArray) -> BoolArray:
    """Return the actions on a shortest safe way to a goal, ``[n, actions]``; all if there is none.

    Args:
        state: the copies.
        goals: which places (x, phase) are goals, ``[n, length, 5]``.
        deadly: which places end the episode.
        dx: how far each action moves, ``[actions]``.
        jump: whether it jumps.
    """
    best = np.ones((len(state), len(dx)), bool)
    for row, one in enumerate(state):
        packed = np.packbits(np.stack([goals[row], deadly[row]])).tobytes()
        left = _steps_left(packed, goals.shape[1], tuple(dx.tolist()), tuple(jump.tolist()))[one["x"], one["phase"]]
        if np.isfinite(left.min()):
            best[row] = left == left.min()
    return best


@functools.lru_cache(maxsize=4096)
def _steps_left(packed: bytes, length: int, dx: tuple[int, ...], jump: tuple[bool, ...]) -> FloatArray:
    """Steps to a goal by place and action, ``[length, 5, actions]``."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=2 * length * JUMPS).astype(bool)
    goals, deadly = bits.reshape(2, length, JUMPS)
    x, phase = np.indices((length, JUMPS))
    after = [
        (np.clip(x + move, 0, length - 1), np.where(phase > 0, (phase + 1) % JUMPS, int(up)))
        for move, up in zip(dx, jump, strict=True)
    ]
    left = np.where(goals, 0.0, np.inf)
    while True:
        steps = 1.0 + np.stack([left[place] for place in after], -1)
        better = np.where(goals, 0.0, np.where(deadly, np.inf, steps.min(-1)))
        if np.array_equal(better, left):
            return steps
        left = better
