"""Which observation and action spaces the reward models and policies take, and what to do about the others."""

import gymnasium
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.images import LEAST_SIDE, is_image


def check_spaces(
    observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object], env_name: str
) -> None:
    """Checks that an environment's spaces are supported.

    Supported observations: Box of rank 1, of a float or integer dtype; or uint8 images [height, width, channels] of at
    least 16x16 pixels. Supported actions: Discrete counted from 0; or Box of rank 1 of a float dtype, bounded or not.

    Raises:
        ValueError: With the environment, the space, what is supported and what to do.
    """
    if (problem := _observation_problem(observation_space)) is not None:
        raise ValueError(
            f"Environment {env_name!r} has the observation space {observation_space}. Supported are a Box of rank 1 "
            "with a float or integer dtype, and a uint8 image Box of shape (height, width, channels) of at least "
            f"{LEAST_SIDE}x{LEAST_SIDE} pixels. {problem}"
        )
    if (problem := _action_problem(action_space)) is not None:
        raise ValueError(
            f"Environment {env_name!r} has the action space {action_space}. Supported are Discrete with start=0, and "
            f"Box of rank 1 with a float dtype. {problem}"
        )


def _observation_problem(space: gymnasium.Space[object]) -> str | None:
    """What to do about an unsupported observation space; None if it is supported."""
    if not isinstance(space, spaces.Box):
        return "Wrap the environment in gymnasium.wrappers.FlattenObservation, which turns the space into such a Box."
    if is_image(space) or (len(space.shape) == 1 and space.shape[0] >= 1 and np.dtype(space.dtype).kind in "fiu"):
        return None
    if len(space.shape) == 3:
        height, width, _ = space.shape
        if height < LEAST_SIDE <= width:
            return (
                "This looks like channels first: move the channels last with gymnasium.wrappers.TransformObservation "
                "and numpy.moveaxis(image, 0, -1)."
            )
        if space.dtype != np.uint8:
            return (
                "If these are images, return them as uint8 in 0..255 (gymnasium.wrappers.TransformObservation); "
                "otherwise wrap the environment in gymnasium.wrappers.FlattenObservation."
            )
        return (
            "Enlarge the images with gymnasium.wrappers.ResizeObservation, or wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if len(space.shape) == 2 and space.dtype == np.uint8:
        return (
            "If these are grey images, give them a channel axis (gymnasium.wrappers.GrayscaleObservation has "
            "keep_dim=True); otherwise wrap the environment in gymnasium.wrappers.FlattenObservation."
        )
    if len(space.shape) == 1:
        return "Return numbers, at least one, with gymnasium.wrappers.TransformObservation."
    return "Wrap the environment in gymnasium.wrappers.FlattenObservation."


def _action_problem(space: gymnasium.Space[object]) -> str | None:
    """What to do about an unsupported action space; None if it is supported."""
    if isinstance(space, spaces.Discrete):
        if space.start == 0:
            return None
        return f"Count the actions from 0 and add {space.start} with gymnasium.wrappers.TransformAction."
    if isinstance(space, spaces.Box):
        if len(space.shape) == 1 and space.shape[0] >= 1 and np.dtype(space.dtype).kind == "f":
            return None
        return "Offer a float Box of rank 1 with gymnasium.wrappers.TransformAction, and reshape or round there."
    return (
        "Offer one Discrete space, with one action for each combination (gymnasium.wrappers.TransformAction), or a Box "
        "of rank 1."
    )
