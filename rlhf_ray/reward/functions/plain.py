"""Any Python function as a reward function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Self

import gymnasium as gym
import numpy as np
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.functions.function import INPUTS, Input, RewardFunction
from rlhf_ray.reward.unmoved import copied, modules_of


class CallableReward(RewardFunction):
    """A function ``(observations, actions, next_observations, terminated) -> [n]`` of numpy arrays. It has no gradients.

    Args:
        function: the reward.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        name: short name for reports.
        inputs: the inputs that it depends on.
    """

    def __init__(
        self,
        function: Callable[[Array, Array, Array, Array], Array],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        name: str = "",
        inputs: Iterable[Input] = INPUTS,
    ):
        self._function = function
        self.observation_space, self.action_space = observation_space, action_space
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.inputs = frozenset(inputs)

    def stateful(self) -> list[nn.Module]:
        """Return the modules that the function works with."""
        return modules_of(self._function)

    def asked(self) -> Self:
        """Return a copy: an object's own state stays as it is."""
        own = copy.copy(self)
        own._function = copied(self._function)
        return own

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward, ``[1, n]`` float64.

        Raises:
            SettingError: the function doesn't return one finite number per step.
        """
        rewards = np.asarray(self._function(observations, actions, next_observations, terminated), np.float64)
        if rewards.shape != (len(terminated),):
            raise SettingError(
                f"The reward function {self.name!r} returned shape {rewards.shape} for {len(terminated)} steps; it must return "
                f"({len(terminated)},): one number per step."
            )
        bad = np.flatnonzero(~np.isfinite(rewards))
        if len(bad):
            raise SettingError(
                f"The reward function {self.name!r} returned NaN or infinite rewards on {len(bad)} of {len(rewards)} steps, the "
                f"first of them number {bad[0]} (from 0); they must be finite."
            )
        return rewards[None]
