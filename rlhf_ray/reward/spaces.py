"""Gymnasium spaces as JSON: what a saved reward model says about its inputs."""

from typing import Any

import gymnasium as gym
import numpy as np


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """``space`` (Box or Discrete) as JSON values. Bounds that are the same everywhere are written once."""
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    raise ValueError(f"The space {space} cannot be written; only Box and Discrete can.")


def space_from_json(value: dict[str, Any]) -> gym.Space[Any]:
    """The inverse of `space_to_json`."""
    if value["type"] == "Discrete":
        return gym.spaces.Discrete(value["n"], start=value["start"])
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    low, high = (np.broadcast_to(np.array(value[name], dtype=dtype), shape) for name in ("low", "high"))
    return gym.spaces.Box(low, high, shape, dtype.type)


def _bound(bound: np.ndarray[Any, Any]) -> float | list[Any]:
    # Infinite bounds pass through JSON as Infinity, which Python's own reader and writer agree on.
    return float(bound.flat[0]) if bool(np.all(bound == bound.flat[0])) else bound.tolist()
