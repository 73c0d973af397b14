"""The true reward function of a subject's environment, if there is one that agrees with the recorded true rewards."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import Fault, SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import OBJECTS, GridWorld
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import RewardFunction


def true_reward(subject: Subject, most: int = 500) -> RewardFunction | None:
    """Return the environment's reward as a function; None if it has none, or if it disagrees with recorded rewards."""
    if subject.environment is None or not len(subject.data) or not np.isfinite(subject.data.rewards).all():
        return None
    try:
        truth = ground_truth(subject.environment)
        steps = subject.data.sample(most, np.random.default_rng(0))
        agrees = np.allclose(truth.of(steps), steps.rewards, atol=1e-4)
    except (Fault, ImportError, SettingError, ValueError, IndexError, gym.error.Error):
        return None
    return truth if agrees else None


def object_names(environment: str | None) -> dict[str, int]:
    """Return object codes by name for a grid world of ours; empty for other environments."""
    return {} if environment is None else dict(_object_names(environment))


@functools.lru_cache
def _object_names(environment: str) -> tuple[tuple[str, int], ...]:
    try:
        env = make_env(environment)
    except (Fault, ImportError, SettingError, ValueError, gym.error.Error):
        return ()
    found = tuple(OBJECTS.items()) if isinstance(env.unwrapped, GridWorld) else ()
    env.close()  # type: ignore[no-untyped-call]
    return found
