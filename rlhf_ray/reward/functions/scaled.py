"""A reward on another scale: the same reward for whoever learns from it where no episode ends early."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.reward.functions.function import RewardFunction


class ScaledReward(RewardFunction):
    """``R' = factor * (R - offset)``, in double precision.

    Args:
        base: the reward R.
        factor: above 0.
        offset: what is subtracted first.
        digits: decimals that are kept; None: all. Equal rewards stay equal then, whatever rounding does to them.
    """

    def __init__(self, base: RewardFunction, factor: float, offset: float, digits: int | None = None):
        self.base, self.factor, self.offset, self.digits = base, float(factor), float(offset), digits
        self.name, self.inputs = base.name, base.inputs
        self.observation_space, self.action_space = base.observation_space, base.action_space

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute each member's reward, ``[members, n]`` float64."""
        given = self.base.members(observations, actions, next_observations, terminated)
        scaled = self.factor * (np.asarray(given, np.float64) - self.offset)
        return np.asarray(scaled if self.digits is None else np.round(scaled, self.digits) + 0.0, np.float64)

    def combine(self, members: Tensor) -> Tensor:
        """Combine the members as the reward itself does."""
        return self.base.combine(members)

    @property
    def differentiable(self) -> bool:
        """Whether the reward is."""
        return self.base.differentiable

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients: see `RewardFunction.forward`."""
        given: Tensor = self.base.forward(observations, actions, next_observations, terminated)
        return self.factor * (given - self.offset)

    def layers(self) -> dict[str, nn.Module]:
        """Return the reward's layers by name."""
        return self.base.layers()

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the untrained reward."""
        return self.base.fresh(seed)
