"""Minari data sets in and out. Needs the extra ``minari``. Runs no code from them.

A data set is the folder ``data`` of ``~/.minari/datasets/ID`` with a ``metadata.json``; its parent also works as a path. Minari's
own storage classes read and write the arrays (HDF5, Arrow or Parquet).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data import read_episode
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_recorded
from rlhf_ray.data.recorded_episode import RecordedEpisode
from rlhf_ray.data.spaces import one_line, shaped
from rlhf_ray.data.views import action_view_of, view_of

METADATA = "metadata.json"


def is_minari(path: Path) -> bool:
    """Return whether ``path`` is a Minari data set."""
    return _data(path) is not None


class MinariFolder:
    """Reads the Minari data set at ``path``.

    Attributes:
        observation_space, action_space: the environment's spaces as ours (`rlhf_ray.data.views`): a Dict of numbers is one vector.
        environment: its id; None if the data set doesn't say.

    Raises:
        SettingError: Minari is not installed, there is no data set at ``path``, or its spaces can't be seen as ours.
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
            space = _in_order(self._storage.observation_space, json.loads(metadata["observation_space"]))
            acts = self._storage.action_space
            self.environment: str | None = json.loads(metadata["env_spec"])["id"] if "env_spec" in metadata else None
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise SettingError(f"{path} can't be read as a Minari data set: {error}.") from error
        seen, acted = view_of(space), action_view_of(acts)
        self._see: Callable[[Any], Array] = np.asarray if seen is None else seen.see
        self._acted: Callable[[Array], Array] = np.asarray if acted is None else acted.see
        self.observation_space, self.action_space = seen.space if seen else space, acted.space if acted else acts
        if not isinstance(self.observation_space, gym.spaces.Box | gym.spaces.Discrete):
            raise SettingError(
                f"{path} has observations of {one_line(space)}; only Box, Discrete, MultiDiscrete and MultiBinary ones can be "
                "read, and Dicts and Tuples of numbers, or of images of one size."
            )
        if not isinstance(self.action_space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            raise SettingError(
                f"{path} has actions of {one_line(acts)}; only Box, Discrete, MultiDiscrete and MultiBinary ones can be read."
            )

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes.

        Raises:
            SettingError: the files are damaged, or an episode does not fit the data set's own spaces.
        """
        spaces = self.observation_space, self.action_space
        try:
            for number, episode in enumerate(self._storage.get_episodes(range(self._storage.total_episodes))):
                actions = shaped(self._acted(read_episode.numbers(episode["actions"], "actions")), self.action_space)
                ends = episode["terminations"], episode["truncations"]
                read = read_episode.episode(
                    number, self._see(episode["observations"]), actions, episode["rewards"], *ends
                )
                check_recorded(read.observations, read.actions, spaces, f"the steps of episode {number}", own=True)
                yield RecordedEpisode(read, truncated=bool(read_episode.flags(ends[1], "truncations")[-1]))
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise SettingError(f"{self.path} is damaged ({why}): download or convert it again.") from error


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
        environment: the environment's gymnasium id; left out if it was registered with a function instead of ``module:Class``.

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
    spec = None if environment is None else _saved(gym.registry.get(environment))
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
                observations=episode.trajectory.observations,
                actions=episode.trajectory.actions,
                rewards=list(episode.trajectory.rewards),
                terminations=[*[False] * (len(episode.trajectory) - 1), episode.trajectory.terminated],
                truncations=[*[False] * (len(episode.trajectory) - 1), episode.truncated],
            )
            for episode in episodes
        )


def _saved(spec: Any) -> Any:
    """Return ``spec`` if Minari can save it: an environment that was registered with a function as its entry point can't be."""
    try:
        return spec and spec.to_json() and spec
    except ValueError:
        return None


def _in_order(space: gym.Space[Any], declared: dict[str, Any]) -> gym.Space[Any]:
    """Give the parts of a Dict the environment's order, in which its numbers become a vector: reading a space sorts them."""
    if isinstance(space, gym.spaces.Dict):
        parts = {name: _in_order(space[name], part) for name, part in declared["subspaces"].items()}
        return gym.spaces.Dict(OrderedDict(parts))
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_in_order(*pair) for pair in zip(space, declared["subspaces"], strict=True)])
    return space


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
