"""Gymnasium spaces as JSON, for saved reward models and recordings."""

from typing import Any

import gymnasium as gym
import numpy as np


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Convert ``space`` (Box, Discrete, MultiDiscrete or MultiBinary) to JSON values.

    A bound that is the same everywhere is written once.
    """
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    raise ValueError(f"The space {space} can't be saved; only Box, Discrete, MultiDiscrete and MultiBinary can.")


def space_from_json(value: dict[str, Any]) -> gym.Space[Any]:
    """Convert what `space_to_json` returned back to a space."""
    if value["type"] == "Discrete":
        return gym.spaces.Discrete(value["n"], start=value["start"])
    if value["type"] == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(value["nvec"], start=value["start"])
    if value["type"] == "MultiBinary":
        return gym.spaces.MultiBinary(value["n"])
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    low, high = (np.broadcast_to(np.array(value[name], dtype=dtype), shape) for name in ("low", "high"))
    return gym.spaces.Box(low, high, shape, dtype.type)


def choices_of(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the number of values of each component of an action: of one for Discrete, several for MultiDiscrete, else none."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    return tuple(int(n) for n in space.nvec.flat) if isinstance(space, gym.spaces.MultiDiscrete) else ()


def _bound(bound: np.ndarray[Any, Any]) -> float | list[Any]:
    # Python's json module writes and reads infinite bounds as Infinity.
    return float(bound.flat[0]) if bool(np.all(bound == bound.flat[0])) else bound.tolist()
