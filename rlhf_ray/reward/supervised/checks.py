"""Checks of recorded steps before a reward model is fitted to them: shapes, types, finite values."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_observations, check_recorded, in_type
from rlhf_ray.data.spaces import choices_of, shaped
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
        raise SettingError(f"{what} have no steps; record some first.")
    actions = shaped(steps.actions, action_space)
    if choices_of(action_space) and np.array_equal(actions, np.round(actions)):  # whole numbers may be saved as floats
        actions = actions.astype(np.int64)
    check_recorded(steps.observations, actions, (observation_space, action_space), what, own=own)
    check_observations(steps.next_observations, observation_space, what, own=own)
    unknown = ~np.isfinite(steps.rewards)
    if unknown.any():
        raise SettingError(
            f"{what} have {int(unknown.sum())} of {len(steps)} rewards that are NaN or infinite; record them with their rewards, "
            "or remove those steps."
        )
    seen = [in_type(values, observation_space) for values in (steps.observations, steps.next_observations)]
    return steps.with_(actions=actions, observations=seen[0], next_observations=seen[1])
