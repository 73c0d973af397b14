"""Checks of recorded steps before a reward model is fitted to them: shapes, types, finite values."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions


def check_steps(
    steps: Transitions, observation_space: gym.spaces.Box, action_space: gym.Space[Any], what: str = "The data"
) -> None:
    """Check that ``steps`` fit the spaces and have known, finite rewards.

    Bytes and floats are never mixed: networks scale images by the space's type, so that float images in [0, 1] among bytes from 0
    to 255 would look black.

    Args:
        steps: the steps.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        what: names the steps in the error.

    Raises:
        SettingError: they don't fit; the message says what and how to mend it.
    """
    if not len(steps):
        raise SettingError(f"{what} has no steps; record some first.")
    shapes = steps.observations.shape[1:], steps.next_observations.shape[1:], steps.actions.shape[1:]
    if shapes != (observation_space.shape, observation_space.shape, action_space.shape):
        raise SettingError(
            f"{what} has observations of shape {shapes[0]} (after the step: {shapes[1]}) and actions of shape {shapes[2]}; the "
            f"environment has {observation_space} and {action_space}. Use the environment that it was recorded in."
        )
    for name in ("observations", "next_observations"):
        _check_observations(getattr(steps, name), observation_space, f"{what} has {name}")
    if isinstance(action_space, gym.spaces.Discrete):
        first, last = int(action_space.start), int(action_space.start) + int(action_space.n) - 1
        least, most = steps.actions.min(), steps.actions.max()
        if not first <= least <= most <= last or np.any(steps.actions != np.round(steps.actions)):
            raise SettingError(f"{what} has actions from {least} to {most}; the environment's are {first} to {last}.")
    elif not np.isfinite(steps.actions).all():
        raise SettingError(f"{what} has actions that are NaN or infinite; remove those steps.")
    unknown = ~np.isfinite(steps.rewards)
    if unknown.any():
        raise SettingError(
            f"{what} has {int(unknown.sum())} of {len(steps)} rewards that are NaN or infinite; record them with their rewards, or "
            "remove those steps."
        )


def _check_observations(values: Array, space: gym.spaces.Box, what: str) -> None:
    bytes_wanted = space.dtype == np.uint8
    if bytes_wanted != (values.dtype == np.uint8) or values.dtype.kind not in "fiu":
        raise SettingError(
            f"{what} of type {values.dtype}, and the environment's are {space.dtype}; convert them"
            f"{' to whole numbers from 0 to 255' if bytes_wanted else ''} first."
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise SettingError(f"{what} that are NaN or infinite; remove those steps.")
