"""Runner: what MiniRun and CueRun share. An agent runs to the right and jumps; the view scrolls with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, IntArray
from rlhf_ray.envs.levels import CELLS

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
    found = marks[np.arange(len(marks))[:, None], np.minimum(cells, length - 1)] & (cells < length)
    nearest: IntArray = np.where(found.any(1), cells[np.arange(len(cells)), found.argmax(1)], -1)
    return nearest


def shortest(
    start: tuple[int, int],
    goal: Callable[[int, int], bool],
    deadly: Callable[[int, int], bool],
    moves: list[tuple[int, bool]],
    length: int,
) -> BoolArray:
    """Return which ``moves`` (dx, jump) begin a shortest safe way from (x, phase) to a goal, ``[moves]``; all if there is none."""
    left: dict[tuple[int, int], int] = {}
    firsts: dict[tuple[int, int], set[int]] = {}
    queue: deque[tuple[int, int]] = deque()
    left[start], firsts[start] = 0, set()
    queue.append(start)
    best, found = -1, set[int]()
    while queue:
        node = queue.popleft()
        if 0 <= best <= left[node]:
            break
        for i, (dx, jump) in enumerate(moves):
            x = min(max(node[0] + dx, 0), length - 1)
            phase = (node[1] + 1) % JUMPS if node[1] else int(jump)
            after = (x, phase)
            if deadly(*after):
                continue
            first = {i} if node == start else firsts[node]
            if goal(*after):
                best, found = left[node] + 1, found | first
            elif after not in left:
                left[after], firsts[after] = left[node] + 1, set(first)
                queue.append(after)
            elif left[after] == left[node] + 1:
                firsts[after] |= first
    return np.array([not found or i in found for i in range(len(moves))])
