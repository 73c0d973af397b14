"""Demonstrations: recorded steps of a person or a policy, in one file.

The file is numpy's ``.npz``, with one flat array per name, over the steps of all episodes in order, as in D4RL::

    observations  actions  next_observations  rewards  terminals  timeouts

Behaviour cloning needs only the first two. An ``.npz`` of ours also holds the environment's spaces, as JSON texts
``observation_space`` and ``action_space``. `rlhf_ray.data.recordings` reads other formats.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data import other_formats
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.inputs import check_observations, check_recorded
from rlhf_ray.data.spaces import shaped, space_from_json, space_to_json
from rlhf_ray.data.transitions import RecordedEpisode, Transitions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Demonstrations:
    """``n`` steps of complete episodes in order. Optional arrays are None if not recorded.

    Attributes:
        observations, next_observations: ``[n, *observation_shape]``: before and after each step.
        actions: ``[n, *action_shape]``, as given to the environment.
        rewards: ``[n]`` or ``[n, 1]``: the true rewards.
        terminals, timeouts: ``[n]`` or ``[n, 1]`` bool: whether the step terminated the episode; whether it was truncated after it.

    Raises:
        ValueError: the arrays differ in length, are empty, or are no numbers; an array and its shape are named.
    """

    observations: Array
    actions: Array
    next_observations: Array | None = None
    rewards: FloatArray | None = None
    terminals: BoolArray | None = None
    timeouts: BoolArray | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                object.__setattr__(self, name, _CHECKS[name](value, name))
        lengths = {name: len(value) for name, value in vars(self).items() if value is not None}
        if len(set(lengths.values())) != 1 or not len(self.actions):
            raise ValueError(f"demonstrations need arrays of one length, at least 1; got lengths {lengths}")
        if self.next_observations is not None and self.next_observations.shape != self.observations.shape:
            shapes = list(self.next_observations.shape), list(self.observations.shape)
            raise ValueError(f"next_observations has shape {shapes[0]}, and observations {shapes[1]}")

    def __len__(self) -> int:
        return len(self.actions)

    def save(self, file: Path | str, spaces: Sequence[gym.Space[Any]] = ()) -> None:
        """Write the demonstrations to the ``.npz`` file ``file``, with the environment's observation and action space, if known."""
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = [np.array(json.dumps(space_to_json(space))) for space in spaces]
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        arrays |= dict(zip(SPACES, texts, strict=False))
        with whole_file(file) as sink:
            np.savez_compressed(sink, **arrays)

    @staticmethod
    def load(path: Path | str) -> Demonstrations:
        """Load demonstrations from an ``.npz`` file, or from the arrays of one in HDF5, as D4RL's. Runs no code from it.

        Raises:
            SettingError: ``path`` holds no demonstrations; the message says what is missing.
        """
        try:
            with _open(path) as arrays:
                for name in ("observations", "actions"):
                    if name not in arrays:
                        raise ValueError(f"it has no array {name}, but {', '.join(arrays) or 'none'}")
                return Demonstrations(**{name: arrays[name][()] for name in _CHECKS if name in arrays})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise other_formats.unreadable(path, error) from error

    @staticmethod
    def of(trajectories: Sequence[Trajectory]) -> Demonstrations:
        """Join whole episodes. Those that did not terminate count as truncated.

        Raises:
            ValueError: there is none, or they differ in their shapes.
        """
        if not trajectories:
            raise ValueError("it has no episodes")
        other_formats.check_alike(trajectories)
        steps = Transitions.of_trajectories(trajectories)
        last = np.append(np.diff(steps.episodes) != 0, True)
        return Demonstrations(
            steps.observations,
            steps.actions,
            steps.next_observations,
            rewards=None if np.isnan(steps.rewards).all() else steps.rewards,
            terminals=steps.terminated,
            timeouts=last & ~steps.terminated,
        )

    def checked(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], where: str, own: bool = False
    ) -> Demonstrations:
        """Check that the demonstrations match the environment's spaces and are finite.

        Args:
            observation_space: the environment's observation space.
            action_space: the environment's action space.
            where: names the file in the error.
            own: whether this environment was recorded (`rlhf_ray.data.recordings.recorded_in`).

        Returns:
            The demonstrations, with actions of the space's shape.

        Raises:
            SettingError: they don't match, are on another scale, or hold NaN or infinite values.
        """
        made = replace(self)
        object.__setattr__(made, "actions", shaped(self.actions, action_space))  # which the constructor would flatten
        what = f"The demonstrations in {where}"
        check_recorded(made.observations, made.actions, (observation_space, action_space), what, own=own)
        if made.next_observations is not None:
            check_observations(made.next_observations, observation_space, what, own=own)
        return made

    def trajectories(self) -> list[Trajectory]:
        """Split into `episodes`, for `rlhf_ray.data.fragments.cut_fragments`."""
        return [episode.trajectory for episode in self.episodes()]

    def episodes(self) -> list[RecordedEpisode]:
        """Split into episodes. The last one may be unfinished.

        Without ``next_observations``, each episode loses its last step. Without ``rewards``, rewards are NaN. Where a step's next
        observation is not the next row's observation, the rows between are missing or in another order: they are cut there, which
        is logged.

        Raises:
            SettingError: both ``terminals`` and ``timeouts`` are missing.
        """
        if self.terminals is None and self.timeouts is None:
            raise SettingError(
                "The demonstrations don't mark where episodes end; add the array terminals, timeouts or both."
            )
        terminals, timeouts = (
            np.zeros(len(self), bool) if ends is None else ends for ends in (self.terminals, self.timeouts)
        )
        rewards = np.full(len(self), np.nan) if self.rewards is None else self.rewards.astype(np.float64)
        ended = terminals | timeouts
        cut = np.zeros(len(self) - 1, bool)
        if self.next_observations is not None:
            after, before = self.next_observations[:-1], self.observations[1:]
            coarse = min(after.dtype, before.dtype, key=lambda dtype: dtype.itemsize)
            cut = (after.astype(coarse) != before.astype(coarse)).reshape(len(after), -1).any(1) & ~ended[:-1]
        if cut.any():
            logger.warning(
                "After %d of %d steps, the next row does not have the next observation: cutting there. Each piece counts as an "
                "episode. Mark ends in timeouts, and keep the order of steps.",
                int(cut.sum()),
                len(self),
            )
        ends = np.flatnonzero(np.append(ended[:-1] | cut, ended[-1])) + 1
        pieces = []
        for begin, end in zip([0, *ends], [*ends, len(self)], strict=True):
            observations, last = self.observations[begin:end], end
            if self.next_observations is not None:
                observations = np.concatenate([observations, self.next_observations[end - 1 : end]])
            else:
                last -= 1
            if last > begin:
                whole = bool(last == end and terminals[end - 1])
                known = self.timeouts is not None and self.next_observations is not None
                truncated = bool(timeouts[end - 1]) if known else not whole
                piece = Trajectory(observations, self.actions[begin:last], rewards[begin:last], whole)
                pieces.append(RecordedEpisode(piece, truncated))
        return pieces


def _open(path: Path | str) -> Any:
    """Open an ``.npz`` as numpy does, without unpickling, or HDF5. Of other files, numpy would advise to unpickle them."""
    with open(path, "rb") as content:
        hdf5, zipped = content.read(8) == b"\x89HDF\r\n\x1a\n", zipfile.is_zipfile(content)
    if zipped and not hdf5:
        return np.load(path, allow_pickle=False)
    if not hdf5:
        raise ValueError("it is no .npz file")
    try:
        import h5py
    except ImportError:
        raise SettingError(f"{path} is HDF5, which needs h5py; install rlhf-ray with its extra minari.") from None
    return h5py.File(path)


def spaces_of_file(path: Path) -> tuple[gym.Space[Any] | None, gym.Space[Any] | None]:
    """Return the observation and action space that an ``.npz`` of `Demonstrations.save` holds; None of other files.

    Raises:
        SettingError: the file's texts are no spaces.
    """
    if not zipfile.is_zipfile(path):
        return None, None
    with np.load(path, allow_pickle=False) as arrays:
        texts = {name: str(arrays[name]) for name in SPACES if name in arrays}
    try:
        seen, taken = (space_from_json(json.loads(texts[name])) if texts else None for name in SPACES)
    except (ValueError, TypeError, KeyError) as error:
        raise SettingError(f"{path} holds no spaces in {' and '.join(SPACES)} ({error}): write it anew.") from error
    return seen, taken


SPACES = ("observation_space", "action_space")
"""Texts in an ``.npz`` with the environment's spaces."""

_CHECKS: dict[str, Callable[[Any, str], Array]] = {
    "observations": other_formats.numbers,
    "actions": other_formats.actions,
    "next_observations": other_formats.numbers,
    "rewards": other_formats.column,
    "terminals": other_formats.flags,
    "timeouts": other_formats.flags,
}
"""The arrays of a file, and what is checked of each."""
