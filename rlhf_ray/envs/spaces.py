"""Checks that observation and action spaces are supported, and suggests wrappers for others."""

import gymnasium
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import LEAST_SIDE, is_image
from rlhf_ray.data.spaces import one_line
from rlhf_ray.data.views import view_of


def check_spaces(
    observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object], env_name: str
) -> None:
    """Check that an environment's spaces are supported.

    Supported observations: Box of rank 1 with a float or integer dtype; or uint8 images [height, width, channels] of at
    least 16x16 pixels. Supported actions: Discrete with start 0; MultiDiscrete of rank 1 that starts at 0; or Box of rank 1 with
    a float dtype, bounded or not. `rlhf_ray.envs.make_env` converts most others (`rlhf_ray.envs.views`).

    Args:
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        env_name: the environment's name, for errors.

    Raises:
        SettingError: a space is not supported. The message names the environment, the space and the remedy.
    """
    if (problem := _observation_problem(observation_space)) is not None:
        raise SettingError(
            f"Environment {env_name!r} has the observation space {one_line(observation_space)}. Supported are a Box of rank 1 "
            "with a float or integer dtype, and a uint8 image Box of shape (height, width, channels) of at least "
            f"{LEAST_SIDE}x{LEAST_SIDE} pixels. {problem}"
        )
    if (problem := _action_problem(action_space)) is not None:
        raise SettingError(
            f"Environment {env_name!r} has the action space {one_line(action_space)}. Supported are Discrete with start=0, "
            f"MultiDiscrete of rank 1 with start=0, and Box of rank 1 with a float dtype. {problem}"
        )


def _observation_problem(space: gymnasium.Space[object]) -> str | None:
    """Return the remedy for an unsupported observation space; None if it is supported."""
    wrap = "Wrap the environment in gymnasium.wrappers."
    if not isinstance(space, spaces.Box):
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            return f"{wrap}FlattenObservation, which makes it such a Box."
        if view_of(space) is not None:
            return "Wrap the environment in rlhf_ray.envs.Viewed, or gymnasium.wrappers.FlattenObservation; both convert it."
        return (
            "Select or convert parts with gymnasium.wrappers.TransformObservation, for example one image. (A Dict works as it is "
            "if its parts are images of one size, numbers, Discrete, MultiDiscrete and MultiBinary.)"
        )
    if is_image(space) or (len(space.shape) == 1 and space.shape[0] >= 1 and np.dtype(space.dtype).kind in "fiu"):
        return None
    if len(space.shape) == 3 and space.shape[0] < LEAST_SIDE <= space.shape[1]:
        return f"{wrap}TransformObservation and move the channels last with numpy.moveaxis(image, 0, -1)."
    if len(space.shape) == 3 and space.dtype == np.uint8:
        return f"{wrap}ResizeObservation to enlarge the images, or in FlattenObservation."
    if len(space.shape) == 3:
        return (
            f"{wrap}TransformObservation to return images as uint8 in 0..255; what is no image, in FlattenObservation."
        )
    if len(space.shape) == 2 and space.dtype == np.uint8:
        return (
            f"{wrap}GrayscaleObservation with keep_dim=True if these are grey images, otherwise in FlattenObservation."
        )
    return f"{wrap}{'TransformObservation to return numbers' if len(space.shape) == 1 else 'FlattenObservation'}."


def _action_problem(space: gymnasium.Space[object]) -> str | None:
    """Return the remedy for an unsupported action space; None if it is supported."""
    vector = isinstance(space, spaces.Box | spaces.MultiDiscrete) and len(space.shape) == 1 and space.shape[0] >= 1
    if isinstance(space, spaces.Discrete):
        if space.start == 0:
            return None
        return f"Number the actions from 0 and add {space.start} with gymnasium.wrappers.TransformAction."
    if isinstance(space, spaces.MultiDiscrete) and vector and not np.any(space.start):
        return None
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return "Wrap the environment in rlhf_ray.envs.Viewed, which converts it."
    if isinstance(space, spaces.Box):
        if vector and np.dtype(space.dtype).kind == "f":
            return None
        return "Use a float Box of rank 1 with gymnasium.wrappers.TransformAction, and reshape or round there."
    return "Use one Discrete space with one action per combination (gymnasium.wrappers.TransformAction), or a Box of rank 1."
