"""A table as a reward function."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.reward.functions.function import RewardFunction


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
        states = table.shape[0]
        if table.ndim == 1:
            if actions is None:
                raise ValueError("A reward table over states alone needs the number of actions.")
            self.table: FloatArray = np.broadcast_to(table[None, None], (states, actions, states))
            self.inputs = frozenset(("next_state",))
        elif table.ndim == 2:
            self.table = np.broadcast_to(table[:, :, None], (*table.shape, states))
            self.inputs = frozenset(("state", "action"))
        elif table.ndim == 3 and table.shape[2] == states:
            self.table = table
            self.inputs = frozenset(("state", "action", "next_state"))
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
