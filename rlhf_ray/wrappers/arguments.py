"""What the wrappers' arguments mean: what waits, and which part of an observation the reward model sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.envs.views import view_of
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.settings.checks import require

Transform = Callable[[Any], Any]

Wait = bool | Literal["always"]
"""What waits for learning: nothing, the first reset, or every step with labels due too."""


def check_wait(preferences: PreferenceSettings | None, wait: Wait) -> None:
    """Check ``wait``. Refuse it with pretraining: the steps before the first reward would be random, not the agent's."""
    require(wait in (False, True, "always"), "wait", wait, "it must be False, True or 'always'")
    if wait == "always" and preferences is not None and preferences.human_share:
        raise SettingError(
            f"preferences.human_share is {preferences.human_share}, but wait is 'always', with which only one of people and the "
            "scripted teacher answers: set human_share to 0, or wait to True."
        )
    if wait and preferences is not None and preferences.pretraining_env_steps:
        raise SettingError(
            f"preferences.pretraining_env_steps is {preferences.pretraining_env_steps}, but wait is {wait!r}, which takes random "
            "steps before the first reward: set one of them to 0 or False."
        )


def transform_for(space: gym.Space[Any], given: Transform | None) -> Transform | None:
    """The reward model's view of observations: the user's own, else the one of `rlhf_ray.envs.views` if the space needs one."""
    view = None if given is not None else view_of(space)
    return given if view is None else view.see


def seen_space(space: gym.Space[Any], seen: Array | None, action_space: gym.Space[Any], name: str) -> gym.spaces.Box:
    """The space of the reward model's observations.

    Args:
        space: the space of one observation.
        seen: one observation after the user's ``observation_transform``; None without one.
        action_space: the action space of one environment.
        name: the environment's name, for errors.

    Raises:
        SettingError: the reward model does not support such observations or actions.
    """
    if seen is not None:
        if seen.dtype == np.bool_:
            seen = seen.astype(np.uint8)
        limits = np.iinfo(seen.dtype) if seen.dtype.kind in "iu" else None
        low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        space = gym.spaces.Box(low, high, seen.shape, seen.dtype.type)
    elif (view := view_of(space)) is not None:
        space = view.space
    try:
        check_spaces(space, action_space, name)
    except ValueError as error:
        remedy = "Or select a part of the observation with observation_transform, such as lambda observation: observation['pov']."
        raise SettingError(
            f"{error} {remedy if seen is None else '(This is the output of observation_transform.)'}"
        ) from error
    assert isinstance(space, gym.spaces.Box)  # checked
    return space
