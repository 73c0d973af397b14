"""Switching: mixes a policy's actions with random ones, in stretches."""

from __future__ import annotations

import numpy as np


class Switching:
    """Decides at each step of one episode whether the action is random.

    Args:
        random_share: probability of a random action, at each draw.
        switch_probability: probability of a new draw at each step (above 0, up to 1); in between, steps follow the last draw.
        rng: makes the draws.
    """

    def __init__(self, random_share: float, switch_probability: float, rng: np.random.Generator):
        self._share, self._switch, self._rng = random_share, switch_probability, rng
        self._random: bool | None = None

    def random(self) -> bool:
        """Return whether the next action is random."""
        if self._random is None or self._switch == 1 or self._rng.random() < self._switch:
            self._random = bool(self._rng.random() < self._share)
        return self._random
