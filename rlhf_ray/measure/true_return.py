"""True return: that of a policy that acts deterministically, or of random actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rlhf_ray import envs
from rlhf_ray.data.arrays import Array, FloatArray

ActBest = Callable[[Array], Array]
"""From observations ``[n, …]`` to actions ``[n, …]``."""

SEED_OFFSET = 1_000_000
"""Evaluation episodes begin from seeds that training does not use."""


LONGEST = 10_000
"""Steps after which an evaluated episode is cut off, of an environment that is registered without ``max_episode_steps``."""


@dataclass(frozen=True)
class TrueReturn:
    """The true return over ``episodes`` episodes: mean and standard deviation over them; and how much the actions varied.

    ``action_spread`` is, over all steps, the share of actions that are not the commonest one (Discrete), or the standard deviation
    of the action dimension that varies most (Box, in the action's unit).
    """

    true_return_mean: float
    true_return_std: float
    episodes: int
    action_spread: float


def evaluate(environment: str, act: ActBest | None, *, episodes: int, seed: int) -> TrueReturn:
    """The true return of ``act`` in ``environment``; of random actions where ``act`` is None.

    Args:
        environment: a name that `rlhf_ray.envs.make_env` takes.
        act: the policy.
        episodes: how many to play. Their beginnings depend on ``seed`` alone, so that policies meet the same ones.
        seed: of the episodes.
    """
    copies = min(episodes, 20)
    if envs.is_natively_vectorised(environment):
        env: VectorEnv[Any, Any, Any] = envs.make_vector_env(environment, copies)
    else:
        env = SyncVectorEnv([lambda: with_an_end(environment) for _ in range(copies)])
    actions: list[Array] = []
    try:
        quota = np.full(copies, episodes // copies) + (np.arange(copies) < episodes % copies)
        returns = play(env, act, quota, seed, actions.append)
    finally:
        env.close()
    return TrueReturn(float(returns.mean()), float(returns.std()), len(returns), action_spread(np.concatenate(actions)))


def action_spread(actions: Array) -> float:
    """How much ``actions`` (``[steps]`` of a Discrete space or ``[steps, …]`` of a Box) vary: see `TrueReturn`."""
    if actions.ndim == 1:
        return float(1.0 - np.unique(actions, return_counts=True)[1].max() / len(actions))
    return float(actions.reshape(len(actions), -1).std(axis=0).max())


def with_an_end(environment: str) -> gym.Env[Any, Any]:
    """The environment, whose episodes end after `LONGEST` steps where it has no limit of its own: some would never end."""
    env = envs.make_env(environment)
    limited = env.spec is None or env.spec.max_episode_steps is not None
    return env if limited else gym.wrappers.TimeLimit(env, LONGEST)


def play(
    env: VectorEnv[Any, Any, Any],
    act: ActBest | None,
    quota: Array,
    seed: int,
    see: Callable[[Array], None] = lambda actions: None,
) -> FloatArray:
    """The returns of the first ``quota[i]`` episodes of each copy ``i``.

    How many are counted of each copy is fixed beforehand: counting whichever end first would favour short episodes. ``see`` is
    shown the actions that were taken.
    """
    env.action_space.seed(seed)
    observations, _ = env.reset(seed=SEED_OFFSET + 1000 * seed)
    returns: list[float] = []
    running, begun, played = (
        np.zeros(env.num_envs),
        np.ones(env.num_envs, dtype=bool),
        np.zeros(env.num_envs, dtype=int),
    )
    while (played < quota).any():
        actions = np.asarray(env.action_space.sample() if act is None else act(observations))
        see(actions[begun & (played < quota)])
        observations, rewards, terminated, truncated, _ = env.step(actions)
        running = np.where(begun, running + rewards, 0.0)  # the step after an end begins anew and rewards nothing
        begun = ~(terminated | truncated)
        for i in np.flatnonzero(~begun & (played < quota)):
            returns.append(float(running[i]))
            played[i] += 1
    return np.array(returns)
