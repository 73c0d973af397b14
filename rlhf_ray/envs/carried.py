"""State that an environment's wrappers carry from one episode to the next, such as running statistics of its observations.

Each copy has its own, and evaluations, recordings and resumed runs make new copies: the policy acts there in another environment
than it was trained in.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rlhf_ray.envs.checked import TRIED_STEPS, CheckedEnv
from rlhf_ray.envs.views import Viewed

STATELESS = (OrderEnforcing, PassiveEnvChecker, TimeLimit, CheckedEnv, Viewed)
"""Wrappers around every environment."""


def carried_state(make: Callable[[], gym.Env[Any, Any]]) -> str | None:
    """Say what the wrappers of an environment carry from one episode to the next, and what to do; None if they carry nothing.

    Args:
        make: makes the environment; used once or twice, and closed in between.
    """
    env = make()
    try:
        own = [layer for layer in _layers(env) if isinstance(layer, gym.Wrapper) and not isinstance(layer, STATELESS)]
        keepers, first, again = statistics_of(env), None, None
        if own and not keepers:
            first, again = _episode(env), _episode(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    if keepers:
        return (
            f"it keeps running statistics ({', '.join(keepers)}), and each copy begins with none, in evaluations, recordings and "
            "resumed runs too, so that these are of another environment than training was in. Leave them out and set "
            "ppo.normalize_observations or sac.normalize_observations, which keep statistics with the policy; the learned "
            "reward is normalised anyway"
        )
    if first is None or again is None or not _same(first[1], again[1]) or _same(first[0], again[0]):
        return None
    env = make()
    try:
        fresh = _episode(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    if not _same(first[0], fresh[0]):
        return None  # random anyway
    names = ", ".join(type(layer).__name__ for layer in own)
    return (
        f"its wrappers ({names}) carry something from one episode to the next: after another episode, the same one looks or pays "
        "differently. Evaluations, recordings and resumed runs make the environment anew, and so another one than training was in: "
        "let reset() begin anew"
    )


def statistics_of(env: Any) -> list[str]:
    """Return the names of the layers of an environment, single or vector, that update running means and variances."""
    return [
        type(layer).__name__
        for layer in _layers(env)
        if getattr(layer, "update_running_mean", True)
        and any({"mean", "var", "count"} <= getattr(value, "__dict__", {}).keys() for value in vars(layer).values())
    ]


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment's wrappers from the outside, and the environment."""
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        yield env
        env = env.env
    yield env


def _episode(env: gym.Env[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Play the beginning of an episode, always with one seed and its actions.

    Returns:
        What the environment gives, and in short what it gives without its wrappers.
    """
    inner: Any = env.unwrapped
    reset, step, raw = inner.reset, inner.step, list[Any]()

    def recorded(made: Any) -> Any:
        raw.append(copy.deepcopy(made[:-1]))
        return made

    inner.reset = lambda **given: recorded(reset(**given))
    inner.step = lambda action: recorded(step(action))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env.action_space.seed(0)
            given: list[Any] = [env.reset(seed=0)[0]]
            for _ in range(TRIED_STEPS):
                *stepped, _ = env.step(env.action_space.sample())
                given += stepped
                if stepped[2] or stepped[3]:
                    break
    finally:
        del inner.reset, inner.step
    return given, raw


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(data_equivalence(a, b) for a, b in zip(one, other, strict=True))
