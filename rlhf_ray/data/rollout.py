"""rollout(): the one loop that steps an environment; and random actions in stretches."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.spaces import fitted

Act = Callable[[Array], Any]
"""Maps one observation to an action for the environment."""

See = Callable[[int, Array], None]
"""Callback with the number of steps taken in this rollout and the newest observation."""


@dataclass(frozen=True)
class Rollout:
    """Steps of one episode.

    Attributes:
        trajectory: the steps.
        ended: whether the episode ended with the last step.
    """

    trajectory: Trajectory
    ended: bool


def rollout(
    env: gym.Env[Any, Any],
    act: Act,
    *,
    steps: int | None = None,
    seed: int | None = None,
    after: Rollout | None = None,
    see: See = lambda step, observation: None,
    hear: Callable[[int, Mapping[str, Any]], None] = lambda step, info: None,
) -> Rollout:
    """Step one episode until it ends.

    Args:
        env: the environment.
        act: chooses actions.
        steps: maximum number of steps; None for no limit.
        seed: seeds the reset. Ignored with ``after``.
        after: continue this rollout's episode instead of starting a new one.
        see: called with each observation.
        hear: called with the number of steps and each info, after ``see``. With ``after``, not for the first observation.

    Returns:
        The steps taken.
    """
    if after is None:
        observation, info = env.reset(seed=seed)
        observation, start = np.array(observation), 0
        see(0, observation)
        hear(0, info)
    else:
        observation, start = after.trajectory.observations[-1], after.trajectory.start + len(after.trajectory)
        see(0, observation)
    observations, actions, rewards = [observation], list[Any](), list[float]()
    terminated = truncated = False
    while (steps is None or len(actions) < steps) and not (terminated or truncated):
        action = act(observation)
        # A copy: some environments change their action.
        observation, reward, terminated, truncated, info = env.step(fitted(copy.deepcopy(action), env.action_space))
        observation = np.array(observation)  # a copy: some environments reuse their arrays
        observations.append(observation)
        actions.append(np.array(action))
        rewards.append(float(reward))
        see(len(actions), observation)
        hear(len(actions), info)
    arrays = np.stack(observations), np.stack(actions), np.array(rewards, dtype=np.float64)
    return Rollout(Trajectory(*arrays, bool(terminated), start), bool(terminated or truncated))


class Switching:
    """Decides at each step of one episode whether the action is random.

    Args:
        random_share: probability of a random action, at each draw.
        switch_probability: probability of a new draw at each step (above 0, up to 1); in between, steps follow the last draw.
        rng: makes the draws.
    """

    def __init__(self, random_share: float, switch_probability: float, rng: np.random.Generator):
        self._share, self._switch, self._rng = random_share, switch_probability, rng
        self._random: bool | None = None

    def random(self) -> bool:
        """Return whether the next action is random."""
        if self._random is None or self._switch == 1 or self._rng.random() < self._switch:
            self._random = bool(self._rng.random() < self._share)
        return self._random
