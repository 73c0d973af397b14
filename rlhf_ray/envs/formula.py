"""What environments of ours are made of: a reward as a formula, which steps and ground-truth models compute; checked options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import gymnasium as gym
import numpy as np
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.functions import Input, RewardFunction
from rlhf_ray.reward.functions.shaped import shaped

Shaping: TypeAlias = Literal["none", "dense", "antidense", "random"]
"""Potential shaping of an environment's reward: its potential rises towards the goal (dense), falls (antidense), or is random."""


@dataclass(frozen=True)
class Formula:
    """The reward of a step, with or without potential shaping.

    Attributes:
        name: short name for reports.
        base: the reward without shaping, ``(observations, actions, next_observations) -> [n]``.
        potential: ``observations -> [n]``; None without shaping.
        gamma: discount of the shaping.
        inputs: the inputs of ``base``.
        differentiable: whether both functions also take torch tensors, with gradients.
    """

    name: str
    base: Callable[[Any, Any, Any], Any]
    potential: Callable[[Any], Any] | None = None
    gamma: float = 0.99
    inputs: Iterable[Input] = ("state", "action", "next_state")
    differentiable: bool = False

    def __call__(self, observations: Any, actions: Any, next_observations: Any, terminated: Any) -> Any:
        """Compute the reward of ``n`` steps, ``[n]``: of numpy arrays, or of tensors if `differentiable`."""
        reward = self.base(observations, actions, next_observations)
        if self.potential is None:
            return reward
        before, after = self.potential(observations), self.potential(next_observations)
        return shaped(reward, before, after, terminated, self.gamma)

    def step(self, observation: Any, action: Any, next_observation: Any, terminated: bool) -> float:
        """Compute the reward of one step of the environment."""
        one = (np.asarray(value)[None] for value in (observation, action, next_observation, terminated))
        return float(self(*one)[0])


class FormulaReward(RewardFunction):
    """The ground-truth model of an environment: its `Formula` as a reward function, in float64."""

    def __init__(self, formula: Formula, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.formula, self.name = formula, formula.name
        self.observation_space, self.action_space = observation_space, action_space
        shaping: tuple[Input, ...] = () if formula.potential is None else ("state", "next_state", "done")
        self.inputs = frozenset((*formula.inputs, *shaping))

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward, ``[1, n]`` float64."""
        terminated = np.asarray(terminated, bool)
        return np.asarray(self.formula(observations, actions, next_observations, terminated), np.float64)[None]

    @property
    def differentiable(self) -> bool:
        """Whether the formula is."""
        return self.formula.differentiable

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients; see `RewardFunction.forward`."""
        if not self.differentiable:
            return super().forward(observations, actions, next_observations, terminated)
        rewards: Tensor = self.formula(observations, actions, next_observations, terminated)
        return rewards + 0 * (observations + next_observations).flatten(1).sum(
            1
        )  # tied to each input, even if constant


class KnownReward(gym.Env[Any, Any]):
    """An environment whose steps pay its ``formula``."""

    formula: Formula

    def ground_truth(self) -> FormulaReward:
        """Return the reward of this environment as a reward function."""
        return FormulaReward(self.formula, self.observation_space, self.action_space)


def checked_option(name: str, value: str, kind: Any, of: str) -> str:
    """Return ``value`` if it is one of the literals in ``kind``.

    Raises:
        SettingError: it is not.
    """
    if value not in get_args(kind):
        allowed = ", ".join(repr(choice) for choice in get_args(kind))
        raise SettingError(f"{name} of {of} is {value!r}; it must be one of {allowed}.")
    return value
