"""What the tests of worlds with a known reward share."""

from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import OBJECTS
from rlhf_ray.reward.functions import RewardFunction

GRIDS = ("FixedGoal", "CoinFlip", "TwoGoals", "RandomGoal", "ManyGoals", "NoGoal", "Key", "Walls")
MAZES = ("EmptyMaze4", "EmptyMaze10", "KeyMaze6", "KeyMaze10")
SHAPINGS = ("none", "dense", "antidense", "random")
"""What environments offer; the first changes nothing."""


def world(name: str, **options: Any) -> Any:
    """The environment of ours without its wrappers."""
    return make_env(f"rlhf_ray/{name}-v0", **options).unwrapped


def objects(grid: Any, observation: Any) -> dict[str, list[tuple[int, int]]]:
    """The positions of the objects of a grid's observation by kind; ``wall`` without the walls around."""
    codes = np.asarray(observation).reshape(grid.grid)[1:-1, 1:-1]
    return {
        kind: [(int(row) + 1, int(column) + 1) for row, column in np.argwhere(codes == code)]
        for kind, code in OBJECTS.items()
    }


def reward_table(reward: RewardFunction, observations: np.ndarray, actions: int, terminal: BoolArray) -> FloatArray:
    """A reward function over all states, actions and next states ``[S, A, S]``, from their observations."""
    count = len(observations)
    before, action, after = (part.ravel() for part in np.indices((count, actions, count)))
    return reward(observations[before], action, observations[after], terminal[after]).reshape(count, actions, count)
