"""Batches: class balance, which makes up for rare zero or nonzero rewards in training only, and steps added to each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.settings import SupervisedSettings


@dataclass(frozen=True)
class Extra:
    """Steps that are added to each batch.

    Attributes:
        steps: the steps to draw from.
        target: what the model should say of each, in the rewards' unit.
        count: how many to add.
    """

    steps: Transitions
    target: float
    count: int


class Balancer:
    """Draws batches of training steps and says how much each step weighs in the loss.

    Args:
        nonzero: ``[n]`` bool: whether each training step's reward is not zero.
        settings: balance, batch size.
        rng: draws.

    Attributes:
        rows: the steps that are trained on.
        weights: ``[n]`` float32: weight of each step in the loss.

    Raises:
        SettingError: a balance is asked for, and there is only one kind of reward.
    """

    def __init__(self, nonzero: BoolArray, settings: SupervisedSettings, rng: np.random.Generator):
        self._settings, self._rng, balance = settings, rng, settings.balance
        n, ones = len(nonzero), int(nonzero.sum())
        if balance != "none" and ones in (0, n):
            raise SettingError(
                f"supervised.balance is {balance!r}, but {'no' if ones else 'every'} training reward is zero: there is nothing to "
                "balance; set it to none."
            )
        self.rows: IntArray = np.arange(n)
        self.weights: FloatArray = np.ones(n, np.float32)
        self._chances: FloatArray | None = None
        of_class = np.where(nonzero, n / 2 / max(ones, 1), n / 2 / max(n - ones, 1))  # mean 1
        if balance == "sampler":
            self._chances = of_class / of_class.sum()
        elif balance == "inverse_frequency":
            self.weights = of_class.astype(np.float32)
        elif balance == "drop_zeros":
            zeros = np.flatnonzero(~nonzero)
            kept = ones if settings.keep_zeros is None else round(settings.keep_zeros * len(zeros))
            kept = int(np.clip(kept, 1, len(zeros)))
            self.rows = np.sort(np.concatenate([np.flatnonzero(nonzero), rng.choice(zeros, kept, replace=False)]))
        self.steps_per_epoch = -(-n // settings.batch_size)

    def batches(self, count: int) -> Iterator[IntArray]:
        """Yield ``count`` batches of positions."""
        size, taken = self._settings.batch_size, 0
        while taken < count:
            order = self._order()
            for start in range(0, len(order), size):
                if taken == count:
                    return
                taken += 1
                yield order[start : start + size]

    def _order(self) -> IntArray:
        """Return the steps of one pass, in random order."""
        if self._chances is None:
            return self._rng.permutation(self.rows)
        return self._rng.choice(len(self._chances), len(self._chances), p=self._chances)
