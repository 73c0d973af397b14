"""Gymnasium spaces as JSON, for saved reward models and recordings."""

from typing import Any

import gymnasium as gym
import numpy as np


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Convert ``space`` (Box or Discrete) to JSON values. A bound that is the same everywhere is written once."""
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
    raise ValueError(f"The space {space} can't be saved; only Box and Discrete can.")


def space_from_json(value: dict[str, Any]) -> gym.Space[Any]:
    """Convert what `space_to_json` returned back to a space."""
    if value["type"] == "Discrete":
        return gym.spaces.Discrete(value["n"], start=value["start"])
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    low, high = (np.broadcast_to(np.array(value[name], dtype=dtype), shape) for name in ("low", "high"))
    return gym.spaces.Box(low, high, shape, dtype.type)


def _bound(bound: np.ndarray[Any, Any]) -> float | list[Any]:
    # Python's json module writes and reads infinite bounds as Infinity.
    return float(bound.flat[0]) if bool(np.all(bound == bound.flat[0])) else bound.tolist()
