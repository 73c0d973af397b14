"""Ground-truth models: the true reward of an environment as a reward function, with any shaping that the environment offers."""

from __future__ import annotations

from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.registry import make_env
from rlhf_ray.reward.functions import RewardFunction


def ground_truth(name: str, **options: Any) -> RewardFunction:
    """Return the reward of an environment of ours as a reward function: exactly what its steps pay.

    Args:
        name: as for ``make_env``, for example ``rlhf_ray/EmptyMaze10-v0``.
        **options: of the environment, for example ``reward="path"``, ``shaping="dense"``, ``gamma=0.9``.

    Raises:
        SettingError: the environment has no ground-truth model.
    """
    env = make_env(name, **options)
    model = getattr(env.unwrapped, "ground_truth", None)
    if model is None:
        raise SettingError(
            f"The environment {name!r} has no ground-truth model; write one as a "
            "rlhf_ray.reward.functions.CallableReward."
        )
    reward: RewardFunction = model()
    return reward
