"""Running statistics that an environment's wrappers carry from one episode to the next.

Each copy has its own, and evaluations, recordings and resumed runs make new copies: the policy acts there in another environment
than it was trained in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym


def carried_state(make: Callable[[], gym.Env[Any, Any]]) -> str | None:
    """Say which running statistics an environment keeps, and what to do; None if it keeps none.

    Args:
        make: makes the environment; it is closed again.
    """
    env = make()
    keepers = statistics_of(env)
    env.close()  # type: ignore[no-untyped-call]
    if not keepers:
        return None
    return (
        f"it keeps running statistics ({', '.join(keepers)}), and each copy begins with none, in evaluations, recordings and "
        "resumed runs too, so that these are of another environment than training was in. Leave them out and set "
        "ppo.normalize_observations or sac.normalize_observations, which keep statistics with the policy; the learned "
        "reward is normalised anyway"
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
