"""What the tests of environments share."""

from collections.abc import Callable
from typing import Any

import gymnasium
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


class Gives(gymnasium.Env[Any, Any]):
    """Shows what ``seen`` makes of the number of the step, keeps the last action, and ends at step ``last``."""

    def __init__(self, space: Any, seen: Callable[[int], Any], actions: Any = None, last: int | None = None):
        self.observation_space, self.action_space = space, actions or gymnasium.spaces.Discrete(2)
        self.seen, self.last, self.t = seen, last, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.action = self.t + 1, action
        return self.seen(self.t), 1.0, self.t == self.last, False, {}
