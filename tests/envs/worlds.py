"""What the tests of worlds with a known reward share."""

from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.envs import make_env
from rlhf_ray.reward.functions import RewardFunction

GRIDS = ("FixedGoal", "CoinFlip", "TwoGoals", "RandomGoal", "ManyGoals", "NoGoal", "Key", "Walls")
MAZES = ("EmptyMaze4", "EmptyMaze10", "KeyMaze6", "KeyMaze10")
IMAGES = ("DotsAndDistances", "PlantedImage", "ScoreShortcut")
SHAPINGS = ("none", "dense", "antidense", "random")


def world(name: str, **options: Any) -> Any:
    """The environment of ours without its wrappers."""
    return make_env(f"rlhf_ray/{name}-v0", **options).unwrapped


def epic(one: FloatArray, other: FloatArray, gamma: float = 0.99) -> float:
    """The EPIC distance of two rewards ``[S, A, S]``, all distributions uniform (Gleave et al. 2021)."""
    canonical = []
    for reward in (one, other):
        mean = reward.mean((1, 2))
        flat = (reward + gamma * mean - mean[:, None, None] - gamma * mean.mean()).ravel()
        canonical.append(flat - flat.mean())
    norms = [np.linalg.norm(each) for each in canonical]
    if min(norms) < 1e-9:
        return float(max(norms) >= 1e-9)
    a, b = (each / norm for each, norm in zip(canonical, norms, strict=True))
    return float(np.linalg.norm(a - b) / 2)  # as sqrt((1 - correlation) / 2), without cancellation


def reward_table(reward: RewardFunction, observations: np.ndarray, actions: int, terminal: BoolArray) -> FloatArray:
    """A reward function over all states, actions and next states ``[S, A, S]``, from their observations."""
    count = len(observations)
    before, action, after = (part.ravel() for part in np.indices((count, actions, count)))
    return reward(observations[before], action, observations[after], terminal[after]).reshape(count, actions, count)
