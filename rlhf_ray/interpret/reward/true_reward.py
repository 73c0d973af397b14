"""The true reward of a subject: as a function, if there is one that agrees with the recorded true rewards."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import Fault, SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.reward.functions import RewardFunction


def true_reward_of(environment: str, data: Transitions, most: int = 500) -> RewardFunction | None:
    """Return the environment's reward as a function; None if it has none, or if it disagrees with recorded rewards.

    Args:
        environment: a name that `rlhf_ray.envs.make_env` accepts.
        data: recorded steps.
        most: number of steps to compare.
    """
    if not len(data) or not np.isfinite(data.rewards).all():
        return None
    try:
        truth = ground_truth(environment)
        steps = data.sample(most, np.random.default_rng(0))
        agrees = np.allclose(truth.of(steps), steps.rewards, atol=1e-4)
    except (Fault, ImportError, SettingError, ValueError, IndexError, AttributeError, gym.error.Error):
        return None
    return truth if agrees else None
