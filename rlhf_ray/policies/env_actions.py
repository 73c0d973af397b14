"""Conversion between policy actions and environment actions.

RLlib's policies act in [-1, 1] if the action space is bounded. Its env runners scale and clip actions for the environment and keep
the unscaled ones in episodes and batches. Fragments and reward models use the environment's actions.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.data.arrays import Array


def to_env_actions(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert a policy's actions ``[..., *action_shape]`` to those the environment received.

    If all bounds are finite, actions are scaled to the bounds and clipped; otherwise they are unchanged (RLlib's
    ``normalize_actions``).
    """
    if not isinstance(space, gym.spaces.Box):
        return np.asarray(actions, dtype=np.int64)
    if not _bounded(space):
        return np.asarray(actions, dtype=np.float32)
    scaled = space.low + (np.asarray(actions) + 1.0) * (space.high - space.low) / 2.0
    clipped: Array = np.clip(scaled, space.low, space.high).astype(np.float32)
    return clipped


def to_policy_actions(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert the environment's actions ``[..., *action_shape]`` to policy actions: the inverse of `to_env_actions`."""
    if not isinstance(space, gym.spaces.Box) or not _bounded(space):
        return to_env_actions(actions, space)
    clipped = np.clip(np.asarray(actions, dtype=np.float32), space.low, space.high)
    scaled: Array = (clipped - space.low) / np.maximum(space.high - space.low, 1e-8) * 2.0 - 1.0
    return scaled.astype(np.float32)


def to_env_actions_tensor(actions: torch.Tensor, space: gym.Space[Any]) -> torch.Tensor:
    """Convert actions like `to_env_actions`, for tensors: integers become int64, as in fragments."""
    if not isinstance(space, gym.spaces.Box):
        return actions.long()
    if not _bounded(space):
        return actions
    low, high = (torch.as_tensor(bound, device=actions.device) for bound in (space.low, space.high))
    return (low + (actions + 1.0) * (high - low) / 2.0).clamp(low, high)


def _bounded(space: gym.spaces.Box) -> bool:
    return bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
