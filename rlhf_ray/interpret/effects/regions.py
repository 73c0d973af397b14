"""Regions, the parts of an observation that steps remove, exchange and name, and what else an environment tells."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlhf_ray import envs
from rlhf_ray.data.arrays import BoolArray
from rlhf_ray.data.errors import Fault, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names, names_in, planes_in, take_names
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.gridworld import OBJECTS, GridWorld
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.reward.functions import RewardFunction

PATCHES = 8
"""Patches per side of an image."""


@dataclass(frozen=True)
class Regions:
    """Parts of an observation that don't overlap and together cover it: features, grid cells or image patches."""

    names: tuple[str, ...]  # one for each region, for example ``angle``, ``cell (2, 9)``, ``rows 0-7, columns 8-15``
    masks: BoolArray  # ``[regions, *observation_shape]`` bool
    layout: tuple[int, int]  # ``(rows, columns)`` of the regions for drawing; ``(1, regions)`` for features
    kind: Literal["feature", "cell", "patch"]  # "feature", "cell" or "patch"
    # number of the last regions that are whole channels: numbers beside the images of a Dict, outside of the layout
    planes: int = 0

    def __len__(self) -> int:
        return len(self.names)


def regions_of(
    space: gym.Space[Any],
    grid: tuple[int, int] | None = None,
    names: Sequence[str] | None = None,
    patches: int = PATCHES,
) -> Regions:
    """Divide the observations of a Box: an image into patches over all channels, a grid into cells, other vectors into features.

    ``grid`` are (rows, columns) if the observations are grids, flat or not; ``names`` are those of a vector's features;
    ``patches`` are the patches per side of an image.

    Raises:
        ValueError: ``space`` has no parts (Discrete).
    """
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(f"Observations of {space} have no parts.")
    shape = space.shape
    size = int(np.prod(shape))
    if grid is not None and size == grid[0] * grid[1]:
        masks = np.eye(size, dtype=bool).reshape(size, *shape)
        cells = [f"cell ({row}, {column})" for row in range(grid[0]) for column in range(grid[1])]
        return Regions(tuple(cells), masks, grid, "cell")
    if is_image(space) or (len(shape) == 3 and min(shape[:2]) > 1):
        (height, width), planes, of_channels = shape[:2], planes_in(space), names_in(space)
        pictures = {name.rpartition(", channel ")[0] or name for name in of_channels[planes:]}
        picture = f"{pictures.pop()}, " if len(pictures) == 1 else ""
        rows, columns = (np.linspace(0, side, min(patches, side) + 1).round().astype(int) for side in (height, width))
        found, called = [], []
        for top, bottom in itertools.pairwise(rows):
            for left, right in itertools.pairwise(columns):
                mask = np.zeros(shape, bool)
                mask[top:bottom, left:right, planes:] = True
                found.append(mask)
                called.append(f"{picture}rows {top}-{bottom - 1}, columns {left}-{right - 1}")
        for channel in range(planes):
            found.append(np.broadcast_to(np.arange(shape[2]) == channel, shape))
            called.append(of_channels[channel])
        return Regions(tuple(called), np.stack(found), (len(rows) - 1, len(columns) - 1), "patch", planes)
    called = list(names if names is not None and len(names) == size else feature_names(space))
    return Regions(tuple(called), np.eye(size, dtype=bool).reshape(size, *shape), (1, size), "feature")


def regions_in(environment: str | None, reward: RewardFunction) -> Regions | None:
    """Divide a reward's observations: into grid cells and named features where the environment tells them, images into patches.

    An environment that is None, or that can't be made, tells nothing. None for tables.
    """
    space = reward.observation_space
    grid: tuple[int, int] | None = None
    names: Sequence[str] | None = None
    if environment is not None:
        names = FEATURES.get(environment.rpartition("/")[2].rpartition("-")[0])
        with contextlib.suppress(Fault, ImportError, ValueError, gym.error.Error):
            env = envs.make_env(environment)
            grid = getattr(env.unwrapped, "grid", None)
            names = getattr(env.unwrapped, "feature_names", None) or names
            take_names(space, env.observation_space)
            env.close()  # type: ignore[no-untyped-call]
    try:
        return regions_of(space, grid, names)
    except ValueError:
        return None


@functools.lru_cache
def object_names(environment: str | None) -> Mapping[str, int]:
    """Return object codes by name for a grid world of ours; empty for other environments."""
    if environment is None:
        return {}
    try:
        env = envs.make_env(environment)
    except (Fault, ImportError, SettingError, ValueError, gym.error.Error):
        return {}
    grid = isinstance(env.unwrapped, GridWorld)
    env.close()  # type: ignore[no-untyped-call]
    return OBJECTS if grid else {}


def true_reward_of(environment: str, data: Transitions, most: int = 500) -> RewardFunction | None:
    """Return the environment's reward as a function; None if it has none, or if it disagrees with ``most`` recorded rewards."""
    if not len(data) or not np.isfinite(data.rewards).all():
        return None
    try:
        truth = ground_truth(environment)
        steps = data.sample(most, np.random.default_rng(0))
        agrees = np.allclose(truth.of(steps), steps.rewards, atol=1e-4)
    except (Fault, ImportError, SettingError, ValueError, IndexError, AttributeError, gym.error.Error):
        return None
    return truth if agrees else None


FEATURES: dict[str, tuple[str, ...]] = {
    "Pendulum": ("cos(angle)", "sin(angle)", "angular velocity"),
    "CartPole": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "CartPoleFixed": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "MountainCar": ("position", "velocity"),
    "MountainCarContinuous": ("position", "velocity"),
    "Acrobot": (
        *("cos(angle 1)", "sin(angle 1)", "cos(angle 2)", "sin(angle 2)"),
        *("angular velocity 1", "angular velocity 2"),
    ),
}
"""What the features of gymnasium's environments mean, by the id without namespace and version."""
FEATURES["AcrobotFixed"] = FEATURES["Acrobot"]
