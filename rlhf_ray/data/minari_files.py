"""Minari data sets in and out. Needs the extra ``minari``. Runs no code from them.

A data set is the folder ``data`` of ``~/.minari/datasets/ID`` with a ``metadata.json``; its parent also works as a path. Minari's
own storage classes read and write the arrays (HDF5, Arrow or Parquet).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recorded_episode import RecordedEpisode

METADATA = "metadata.json"


def is_minari(path: Path) -> bool:
    """Return whether ``path`` is a Minari data set."""
    return _data(path) is not None


class MinariFolder:
    """Reads the Minari data set at ``path``.

    Attributes:
        observation_space, action_space: the environment's spaces.
        environment: its id; None if the data set doesn't say.

    Raises:
        SettingError: Minari is not installed, or there is no data set of single arrays at ``path``.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def __init__(self, path: Path | str):
        self.path = Path(path)
        storage_class = _storage_class(f"{path} is a Minari data set")
        data = _data(self.path)
        if data is None:
            raise SettingError(f"{path} is no Minari data set (no {METADATA}).")
        try:
            metadata = json.loads((data / METADATA).read_text())
            # Without them, Minari would make the environment that the file names.
            if not {"observation_space", "action_space"} <= metadata.keys():
                raise ValueError("its metadata has no spaces")
            self._storage = storage_class.read(data)
            self.observation_space, self.action_space = self._storage.observation_space, self._storage.action_space
            self.environment: str | None = json.loads(metadata["env_spec"])["id"] if "env_spec" in metadata else None
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise SettingError(f"{path} can't be read as a Minari data set: {error}.") from error
        for of in (self.observation_space, self.action_space):
            if not isinstance(of, gym.spaces.Box | gym.spaces.Discrete):
                raise SettingError(f"{path} has {of}; only data sets of Box and Discrete spaces can be read.")

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes.

        Raises:
            SettingError: the files are damaged.
        """
        try:
            for each in self._storage.get_episodes(range(self._storage.total_episodes)):
                yield RecordedEpisode(
                    Trajectory(
                        np.asarray(each["observations"]),
                        np.asarray(each["actions"]),
                        np.asarray(each["rewards"], np.float64),
                        bool(np.asarray(each["terminations"])[-1]),
                    ),
                    truncated=bool(np.asarray(each["truncations"])[-1]),
                )
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise SettingError(f"{self.path} is damaged ({error}): download or convert it again.") from error


def write_minari(
    episodes: Iterable[RecordedEpisode],
    out: Path | str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    environment: str | None = None,
) -> None:
    """Write a Minari data set, HDF5, with images as they are (no JPEG).

    ``minari.MinariDataset(out / "data")`` opens it; below ``~/.minari/datasets``, ``minari.load_dataset`` does, by its path from
    there.

    Args:
        episodes: the episodes.
        out: the new folder.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        environment: the environment's gymnasium id.

    Raises:
        SettingError: Minari is not installed, or ``out`` exists.
    """
    out = Path(out)
    storage_class = _storage_class(f"{out} is to be a Minari data set")
    from minari.data_collector import EpisodeBuffer
    from minari.storage.datasets_root_dir import get_dataset_path

    if out.exists():
        raise SettingError(f"out is {out}, which exists; give another folder.")
    root = Path(get_dataset_path(""))
    name = str(out.absolute().relative_to(root)) if out.absolute().is_relative_to(root) else out.name
    name = re.sub(r"[^-_/\w]", "-", name)
    spec = None if environment is None else gym.registry.get(environment)
    with whole_folder(out) as new:
        data = (new / "data").absolute()  # Minari joins a relative path to itself
        storage = storage_class.new(
            data, observation_space, action_space, spec, data_format="hdf5", jpeg_encoding=False
        )
        storage.update_metadata(
            {
                "dataset_id": name if re.search(r"-v\d+$", name) else f"{name}-v0",
                "minari_version": importlib.metadata.version("minari"),
                "description": "Written by rlhf_ray.",
            }
        )
        storage.update_episodes(
            EpisodeBuffer(
                observations=each.trajectory.observations,
                actions=each.trajectory.actions,
                rewards=list(each.trajectory.rewards),
                terminations=[*[False] * (len(each.trajectory) - 1), each.trajectory.terminated],
                truncations=[*[False] * (len(each.trajectory) - 1), each.truncated],
            )
            for each in episodes
        )


def _data(path: Path) -> Path | None:
    for folder in (path, path / "data"):
        try:
            if "data_format" in json.loads((folder / METADATA).read_text()):
                return folder
        except (OSError, TypeError):
            continue
        except ValueError:  # it is there, and damaged: reading it says so
            return folder
    return None


def _storage_class(need: str) -> Any:
    try:
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise SettingError(f"{need}, and Minari is not installed: install the extra minari.") from error
    return MinariStorage
