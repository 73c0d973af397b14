"""What an environment says about its steps besides the reward: whether an episode succeeded, and other numbers.

An episode has succeeded if any of its steps says so (``success`` or ``is_success`` in its info), as in Meta-World's results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray

SUCCESS = ("success", "is_success")
"""Names under which environments say that a step reached the task's goal."""


class Infos:
    """Follows what the copies of a vector environment (next-step autoreset) say about their episodes.

    Args:
        copies: their number.
    """

    def __init__(self, copies: int):
        self._so_far: BoolArray = np.zeros(copies, bool)
        self._ended: BoolArray = np.zeros(copies, bool)
        self._known = False
        self._sums: dict[str, tuple[float, int]] = {}

    def see(self, infos: Mapping[str, Any], ended: BoolArray) -> BoolArray | None:
        """Take in a step: its infos, and whether each copy's episode has ended with it.

        Returns:
            Whether the episodes that have ended succeeded, in the order of their copies; None if the environment doesn't say.
        """
        real = ~self._ended  # the others have started their next episode
        for name in SUCCESS:
            if name in infos:
                self._known = True
                self._so_far |= real & np.asarray(infos[name]).astype(bool) & _told(infos, name)
        for name, values in infos.items():
            if name not in SUCCESS and _is_number(values, len(real)):
                counted = real & _told(infos, name)
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + float(values[counted].sum()), count + int(counted.sum())
        self._ended = np.array(ended, bool)
        succeeded = self._so_far[self._ended]
        self._so_far[self._ended] = False
        return succeeded if self._known else None

    def means(self) -> dict[str, float]:
        """Return the mean over all steps since the last call of each number that isn't whole, by name."""
        sums, self._sums = self._sums, {}
        return {name: total / count for name, (total, count) in sums.items() if count}


def _told(infos: Mapping[str, Any], name: str) -> Any:
    """Return for which copies gymnasium's infos say ``name``: without a mask, for all."""
    return infos.get(f"_{name}", True)


def _is_number(values: Any, copies: int) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind == "f" and values.shape == (copies,)
