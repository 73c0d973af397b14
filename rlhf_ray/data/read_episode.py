"""Episodes that other programs wrote: what every reader checks before it hands them on.

All checks raise a ValueError that names the array and the shapes; the reader adds the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.spaces import of_one_choice


def numbers(values: Any, name: str) -> Array:
    """Return ``values`` as an array of numbers with at least one axis."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise ValueError(f"{name} has rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {array.dtype}, not numbers")
    if not array.ndim:
        raise ValueError(f"{name} is a single number, not one for each step")
    if len(array) and not array.size:
        raise ValueError(f"{name} has shape {list(array.shape)}: no number for a step")
    return array


def actions(values: Any, name: str = "actions") -> Array:
    """Return actions as numbers; true and false are 1 and 0, and whole numbers ``[n, 1]`` are ``[n]``."""
    array = of_one_choice(numbers(values, name))
    return array.astype(np.int64) if array.dtype == bool else array


def column(values: Any, name: str) -> Array:
    """Return one number for each step, ``[n]``, also from ``[n, 1]``, as vectorised environments and torch save it."""
    array = numbers(values, name)
    if array.ndim > 1 and array.size != len(array):
        raise ValueError(f"{name} has shape {list(array.shape)}; it must have [{len(array)}]: one number for each step")
    return array.reshape(len(array))


def flags(values: Any, name: str) -> BoolArray:
    """Return yes or no for each step, ``[n]`` bool, from booleans or the numbers 0 and 1, also as ``[n, 1]``."""
    array = column(values, name)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        odd = array[~np.isin(array, (0, 1))][0]
        raise ValueError(f"{name} has the value {odd:g}; it must be false or true, 0 or 1")
    return array.astype(bool)


def episode(
    number: int, observations: Any, acts: Any, rewards: Any, terminated: Any, truncated: Any = False
) -> Trajectory:
    """Check one episode.

    Args:
        number: of the episode, for errors.
        observations: ``[steps + 1, …]``.
        acts: actions ``[steps, …]``, at least one.
        rewards: ``[steps]`` or ``[steps, 1]``; None if unknown.
        terminated: whether it was; or ``[steps]``, of which the last counts.
        truncated: the same.
    """
    seen, acted = numbers(observations, "observations"), actions(acts)
    given: FloatArray = (
        np.full(len(acted), np.nan) if rewards is None else column(rewards, "rewards").astype(np.float64)
    )
    if len(seen) != len(acted) + 1 or len(given) != len(acted) or not len(acted):
        raise ValueError(
            f"episode {number} has {len(seen)} observations, {len(acted)} actions and {len(given)} rewards; a whole one has one "
            "observation more than actions and rewards"
        )
    ends = []
    for name, said in (("terminations", terminated), ("truncations", truncated)):
        flag = flags(np.atleast_1d(np.asarray(said)), name)
        if len(flag) not in (1, len(acted)):
            raise ValueError(f"episode {number} has {len(flag)} {name} for {len(acted)} actions")
        ends.append(flag)
    return Trajectory(seen, acted, given, bool(ends[0][-1]))


def check_alike(trajectories: Sequence[Trajectory]) -> None:
    """Check that episodes are of one environment, as far as their shapes say."""
    for name in ("observations", "actions"):
        shapes = [getattr(trajectory, name).shape[1:] for trajectory in trajectories]
        for number, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"episode {number} has {name} of shape {list(shape)}, and episode 0 of shape {list(shapes[0])}"
                )


def unreadable(path: Path | str, error: Exception) -> SettingError:
    """Build the error of a file or folder without recorded steps."""
    reason = getattr(error, "strerror", None) or (f"it lacks {error}" if isinstance(error, KeyError) else error)
    return SettingError(
        f"{path} holds no recorded steps ({reason}): it must be an .npz file with the arrays observations and actions, as "
        "`rlhf-ray record` writes it, a recording, trajectories saved by imitation, or a Minari data set."
    )
