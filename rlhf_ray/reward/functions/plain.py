"""Any Python function as a reward function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.functions.function import INPUTS, Input, RewardFunction
from rlhf_ray.reward.passes import passes
from rlhf_ray.reward.unmoved import copied, modules_of


class CallableReward(RewardFunction):
    """A function ``(observations, actions, next_observations, terminated) -> [n]`` of numpy arrays. It has no gradients.

    It is called for the steps of one pass at a time (`rlhf_ray.reward.passes`): the reward of a step may depend on no other step.

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
        self._function, self._everywhere = function, True
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

    def anywhere(self) -> CallableReward:
        """See `RewardFunction.anywhere`."""
        own = copy.copy(self)
        own._everywhere = False
        return own

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward, ``[1, n]`` float64.

        Raises:
            SettingError: the function doesn't return one finite number per step.
        """
        parts = []
        for part in passes(len(terminated), self.observation_space):
            steps = (observations[part], actions[part], next_observations[part], terminated[part])
            given: Any = self._function(*steps)
            parts.append(np.asarray(given.detach().double().cpu() if torch.is_tensor(given) else given, np.float64))
            if parts[-1].shape != (n := len(steps[-1]),):
                raise SettingError(
                    f"The reward function {self.name!r} returned shape {parts[-1].shape} for {n} steps; it must return ({n},): one "
                    "number per step."
                )
        rewards = np.concatenate(parts)
        bad = np.flatnonzero(~np.isfinite(rewards))
        if len(bad) and self._everywhere:
            raise SettingError(
                f"The reward function {self.name!r} returned NaN or infinite rewards on {len(bad)} of {len(rewards)} steps, the "
                f"first of them number {bad[0]} (from 0); they must be finite."
            )
        return rewards[None]
