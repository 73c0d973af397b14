"""Checks of recorded steps before a reward model is fitted to them: shapes, types, finite values."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_observations, in_type
from rlhf_ray.data.spaces import choices_of, one_line, shaped
from rlhf_ray.data.transitions import Transitions


def check_steps(
    steps: Transitions,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    what: str = "The data",
    own: bool = False,
) -> Transitions:
    """Check that ``steps`` fit the spaces and have known, finite rewards. Return them in the spaces' types.

    Args:
        steps: the steps.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        what: names the steps in the error.
        own: whether the environment itself returned the observations: they may leave its bounds.

    Raises:
        SettingError: they don't fit; the message says what and how to mend it.
    """
    if not len(steps):
        raise SettingError(f"{what} has no steps; record some first.")
    steps = steps.with_(actions=shaped(steps.actions, action_space))
    if steps.actions.shape[1:] != action_space.shape:
        raise SettingError(
            f"{what} has actions of shape {steps.actions.shape[1:]}; the environment has {one_line(action_space)}. Use the "
            "environment that it was recorded in."
        )
    for values in (steps.observations, steps.next_observations):
        check_observations(values, observation_space, what, own=own)
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
    seen = [in_type(values, observation_space) for values in (steps.observations, steps.next_observations)]
    steps = steps.with_(observations=seen[0], next_observations=seen[1])
    # Actions may be whole numbers that were saved as floats.
    return steps.with_(actions=steps.actions.astype(np.int64)) if choices_of(action_space) else steps
