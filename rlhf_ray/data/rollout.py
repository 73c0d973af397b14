"""rollout(): the one loop that steps an environment, with observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.fragments import Trajectory

Act = Callable[[Array], Any]
"""From one observation to an action, as the environment takes it."""

See = Callable[[int, Array], None]
"""Is shown how many steps were taken in this rollout, and the observation that the last one led to."""


@dataclass(frozen=True)
class Rollout:
    """Steps of one episode.

    Attributes:
        trajectory: the steps.
        ended: whether the episode ended with the last one.
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
) -> Rollout:
    """Take steps of one episode, until it ends.

    Args:
        env: the environment.
        act: chooses actions.
        steps: the most to take; None: until the episode ends.
        seed: of the episode, which begins anew.
        after: go on from where this one left its episode, instead.
        see: is shown each observation.
    """
    if after is None:
        observation, start = np.array(env.reset(seed=seed)[0]), 0
    else:
        observation, start = after.trajectory.observations[-1], after.trajectory.start + len(after.trajectory)
    see(0, observation)
    observations = [observation]
    actions: list[Any] = []
    rewards: list[float] = []
    terminated = truncated = False
    while (steps is None or len(actions) < steps) and not (terminated or truncated):
        action = act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        observation = np.array(observation)  # a copy: some environments reuse their arrays
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        see(len(actions), observation)
    trajectory = Trajectory(
        np.stack(observations), np.stack(actions), np.array(rewards, dtype=np.float64), bool(terminated), start
    )
    return Rollout(trajectory, bool(terminated or truncated))
