"""How many steps a network sees in one pass if nobody states its layers' sizes: memory must not grow with the data."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym

NUMBERS = 2**20
"""Numbers in the observations of one pass. A layer of 32 channels on an RGB image makes eleven times as many."""


def steps_at_once(space: gym.Space[Any], most: int = NUMBERS) -> int:
    """Return how many steps with observations of ``space`` to pass at once: at most ``most``, at least one."""
    return max(1, min(most, NUMBERS // max(1, math.prod(space.shape or ()))))


def passes(n: int, space: gym.Space[Any], most: int = NUMBERS) -> list[slice]:
    """Return the steps of each pass over ``n`` steps, in order: one pass, of none, if there are none."""
    at_once = steps_at_once(space, most)
    return [slice(start, start + at_once) for start in range(0, max(1, n), at_once)]
