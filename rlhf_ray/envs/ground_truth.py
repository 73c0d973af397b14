"""Ground-truth models: the true reward of an environment as a reward function, with any shaping that the environment offers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import Formula, FormulaReward
from rlhf_ray.envs.registry import make_env
from rlhf_ray.reward.functions import RewardFunction


def ground_truth(name: str, **options: Any) -> RewardFunction:
    """Return the reward of an environment of ours, or of Pendulum, as a reward function: exactly what its steps pay.

    Args:
        name: as for ``make_env``, for example ``rlhf_ray/EmptyMaze10-v0``.
        **options: of the environment, for example ``reward="path"``, ``shaping="dense"``, ``gamma=0.9``.

    Raises:
        SettingError: the environment has no ground-truth model.
    """
    with contextlib.closing(make_env(name, **options)) as env:
        model = getattr(env.unwrapped, "ground_truth", None)
        if model is None and isinstance(env.unwrapped, PendulumEnv):
            return FormulaReward(
                Formula("swing-up", pendulum, inputs=("state", "action")), env.observation_space, env.action_space
            )
        if model is None:
            raise SettingError(
                f"The environment {name!r} has no ground-truth model; write one as a "
                "rlhf_ray.reward.functions.CallableReward."
            )
        reward: RewardFunction = model()
        return reward


def pendulum(observations: Array, actions: Array, next_observations: Array) -> Array:
    """Compute Pendulum's reward, ``[n]``: minus the squared angle from upright, and some of the squared velocity and torque."""
    cosine, sine, velocity = np.asarray(observations, np.float64).T
    torque = np.clip(np.asarray(actions, np.float64)[:, 0], -2.0, 2.0)
    reward: Array = -(np.arctan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2)
    return reward
