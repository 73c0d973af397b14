"""True return of a deterministic policy, or of random actions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.spaces import seeded
from rlhf_ray.data.vector_rollout import Infos

logger = logging.getLogger(__name__)

ActBest = Callable[[Array, Array], Array]
"""Maps observations ``[n, …]``, and whether each is the first of an episode, ``[n]`` bool, to actions ``[n, …]``."""

See = Callable[[Array, Array, Array, BoolArray], Any]
"""Takes the steps that count, ``[n, …]``: observations, actions, next observations, and whether each ended its episode for good."""

SEED_OFFSET = 1_000_000
"""Keeps the seeds of evaluation episodes apart from those of training."""
LONGEST = 10_000
"""Step limit of an evaluation episode if the environment is registered without ``max_episode_steps``."""


@dataclass(frozen=True)
class TrueReturn:
    """True return over evaluation episodes, and how much the actions varied.

    Attributes:
        true_return_mean: mean over episodes.
        true_return_std: standard deviation over episodes.
        episodes: number of episodes.
        action_spread: over all steps, the share of actions other than the most frequent one (Discrete), or the standard deviation
            of the action dimension that varies most (Box, in the action's unit).
        cut: episodes that did not end by themselves, and were cut after `LONGEST` steps, since the environment has no time limit.
            Their return is the sum of these steps.
        success_rate: share of episodes in which a step succeeded; None if the environment doesn't say.
        learned_reward: mean learned reward per step; None if none was asked for.
    """

    true_return_mean: float
    true_return_std: float
    episodes: int
    action_spread: float
    cut: int = 0
    success_rate: float | None = None
    learned_reward: float | None = None


def evaluate(
    environment: str, act: ActBest | None, *, episodes: int, seed: int, reward: See | None = None
) -> TrueReturn:
    """Measure the true return of a policy (None: random actions) in an environment that `rlhf_ray.envs.make_env` makes.

    The episodes' initial states depend only on ``seed``, so all policies start from the same ones. ``reward`` returns the learned
    reward ``[n]`` of steps.
    """
    from rlhf_ray import envs  # slow to import; the command line reads the rest of this file for its help

    copies = min(episodes, 20)
    if envs.is_natively_vectorised(environment):
        env: Any = envs.make_vector_env(environment, copies)
        endless = False
    else:
        if act is not None:
            warn_of_carried_state(environment)
        made = [with_an_end(environment)]
        while len(made) < copies and not isinstance(made[-1].unwrapped, envs.EnvApart):  # few: each takes a process
            made.append(with_an_end(environment))
        copies = len(made)
        env = SyncVectorEnv([lambda one=one: one for one in made])  # type: ignore[misc]
        endless = isinstance(env.envs[0], LastResort)
    actions: list[Array] = []
    learned: list[Array] = []

    def see(before: Array, taken: Array, after: Array, terminated: BoolArray) -> None:
        actions.append(taken)
        if reward is not None and len(taken):
            learned.append(reward(before, taken, after, terminated))

    try:
        quota = np.full(copies, episodes // copies) + (np.arange(copies) < episodes % copies)
        returns, lengths, succeeded = play(env, act, quota, seed, see, environment)
    finally:
        env.close()
    spread, cut = action_spread(np.concatenate(actions)), int((lengths >= LONGEST).sum()) if endless else 0
    success = None if succeeded is None else float(succeeded.mean())
    mean = float(np.concatenate(learned).mean()) if learned else None
    return TrueReturn(float(returns.mean()), float(returns.std()), len(returns), spread, cut, success, mean)


def warn_of_carried_state(environment: str) -> None:
    """Log that an environment carries state from one episode to the next (`rlhf_ray.envs.carried_state`), if it does."""
    from rlhf_ray import envs  # as in `evaluate`

    if (carried := envs.carried_state(lambda: envs.make_env(environment))) is not None:
        logger.warning("Environment %s: %s.", environment, carried)


def success_of(rate: float | None) -> str:
    """Return the share of episodes that succeeded as a text; empty if the environment doesn't say."""
    return "" if rate is None else f"{rate:.0%}".replace("%", " %")


def episodes_of(result: TrueReturn) -> str:
    """Return the number of episodes as a text that says how many were cut."""
    return f"{result.episodes}" + (f" ({result.cut} cut at {LONGEST:,} steps)" if result.cut else "")


class LastResort(gym.wrappers.TimeLimit[Any, Any]):
    """The time limit of an environment that has none of its own: nothing else would end an episode that never ends."""


def action_spread(actions: Array) -> float:
    """Compute the spread of ``actions``, ``[steps]`` (Discrete) or ``[steps, …]`` (Box): see `TrueReturn`."""
    if actions.ndim == 1:
        return float(1.0 - np.unique(actions, return_counts=True)[1].max() / len(actions))
    return float(actions.reshape(len(actions), -1).std(axis=0).max())


def with_an_end(environment: str) -> gym.Env[Any, Any]:
    """Make the environment with a step limit: its own, or `LONGEST` if it has none, since some episodes would never end."""
    from rlhf_ray import envs  # as in `evaluate`

    return ended(envs.make_env(environment))


def ended(env: gym.Env[Any, Any], longest: int | None = None) -> gym.Env[Any, Any]:
    """Add a limit of ``longest`` steps (`LastResort`; default: `LONGEST`) to the environment if it has none."""
    limited = env.spec is None or env.spec.max_episode_steps is not None
    return env if limited else LastResort(env, longest or LONGEST)


def play(
    env: VectorEnv[Any, Any, Any],
    act: ActBest | None,
    quota: Array,
    seed: int,
    see: See = lambda *steps: None,
    environment: str = "",
) -> tuple[FloatArray, IntArray, BoolArray | None]:
    """Play ``quota`` ``[copies]`` episodes in the copies of a vectorised environment; ``act`` None: random actions.

    The quota is fixed in advance: counting the first episodes to end would favour short ones. ``seed`` seeds initial states and
    random actions, and ``see`` is called with the steps that count.

    Returns:
        ``[sum(quota)]`` float, int and bool: the episodes' returns, lengths, and whether they succeeded; None if the environment
        doesn't say.
    """
    drawn = seeded(env.action_space, seed)
    observations, _ = env.reset(seed=SEED_OFFSET + 1000 * seed)
    returns: list[float] = []
    lengths: list[int] = []
    succeeded: list[bool] = []
    infos = Infos(env.num_envs, environment)
    running, begun, first = np.zeros(env.num_envs), *np.ones((2, env.num_envs), bool)
    played, steps = np.zeros((2, env.num_envs), int)
    while (played < quota).any():
        actions = np.asarray(drawn.sample() if act is None else act(observations, first))
        counts = begun & (played < quota)
        before = observations[counts]  # a copy: some environments write the next observations to the same memory
        observations, rewards, terminated, truncated, said = env.step(actions)
        see(before, actions[counts], observations[counts], terminated[counts])
        running = np.where(begun, running + rewards, 0.0)  # the step after an episode's end resets it and has no reward
        steps = np.where(begun, steps + 1, 0)
        first, begun = ~begun, ~(terminated | truncated)
        counted = played[~begun] < quota[~begun]
        succeeded += infos.see(said, ~begun)[counted].tolist()
        for i in np.flatnonzero(~begun)[counted]:
            returns.append(float(running[i]))
            lengths.append(int(steps[i]))
            played[i] += 1
    return np.array(returns), np.array(lengths, np.int64), np.array(succeeded) if infos.known else None
