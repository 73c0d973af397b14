"""Rewards that are written: any Python function, and tables, as reward functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.functions.function import INPUTS, Input, RewardFunction
from rlhf_ray.reward.unmoved import copied, modules_of, passes


class CallableReward(RewardFunction):
    """A function ``(observations, actions, next_observations, terminated) -> [n]`` of numpy arrays. It has no gradients.

    It is called for the steps of one pass at a time (`rlhf_ray.reward.unmoved`): the reward of a step may depend on no other step.

    Args:
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


class TableReward(RewardFunction):
    """A reward of a state, an action and a next state, each numbered from 0.

    Args:
        table: ``[states]``, ``[states, actions]`` or ``[states, actions, states]``: the reward. ``[states]`` is the reward of the
            state that is *entered*.
        actions: number of actions; needed for ``[states]`` alone.
        name: short name for reports.
        state_of: maps observations ``[n, …]`` to states ``[n]``, if the environment's observations are not the states themselves.

    Attributes:
        table: ``[states, actions, states]`` float64.
    """

    def __init__(
        self,
        table: Array,
        actions: int | None = None,
        name: str = "table",
        state_of: Callable[[Array], IntArray] | None = None,
    ):
        table = np.asarray(table, np.float64)
        states = len(table)
        if table.ndim == 1:
            if actions is None:
                raise ValueError("A reward table over states alone needs the number of actions.")
            self.table: FloatArray = np.broadcast_to(table[None, None], (states, actions, states))
            self.inputs = frozenset(("next_state",))
        elif table.ndim == 2 or (table.ndim == 3 and table.shape[2] == states):
            self.table = np.broadcast_to(table.reshape(*table.shape[:2], -1), (*table.shape[:2], states))
            self.inputs = frozenset(INPUTS[: table.ndim])
        else:
            raise ValueError(f"A reward table has shape [S], [S, A] or [S, A, S]; got {list(table.shape)}.")
        self.name, self._state_of = name, state_of
        self.observation_space = gym.spaces.Discrete(states)
        self.action_space = gym.spaces.Discrete(self.table.shape[1])

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Look the rewards up, ``[1, n]`` float64."""
        before, after = (self.states(observed) for observed in (observations, next_observations))
        rewards: FloatArray = self.table[before, np.asarray(actions).astype(np.int64), after]
        return rewards[None]

    def states(self, observations: Array) -> IntArray:
        """Return the number of each observation's state, ``[n]`` int64."""
        states = observations if self._state_of is None else self._state_of(observations)
        return np.asarray(states).astype(np.int64)
