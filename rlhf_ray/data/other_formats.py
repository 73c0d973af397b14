"""Episodes that other programs wrote: what every reader checks, and imitation's and Minari's formats, in and out.

Runs no code from the files. All checks raise a ValueError that names the array and the shapes; the reader adds the file.

imitation (``imitation.data.serialize.save``) writes a folder of Hugging Face datasets: one row per episode, with the nested lists
``obs`` (one more than ``acts``), ``acts``, ``rews``, ``terminal`` and ``infos``, strings of jsonpickle. These are never read, since
they could run code; folders of ours have empty ones.

A Minari data set is the folder ``data`` of ``~/.minari/datasets/ID`` with a ``metadata.json``; its parent also works as a path.
Minari's own storage classes (the extra ``minari``) read and write the arrays (HDF5, Arrow or Parquet).
"""

import importlib.metadata
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.columns import to_lists
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.inputs import check_recorded
from rlhf_ray.data.spaces import of_one_choice, one_line, shaped
from rlhf_ray.data.transitions import RecordedEpisode
from rlhf_ray.data.views import action_view_of, view_of

METADATA = "metadata.json"


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
    """Check an episode: observations ``[steps + 1, …]``, actions ``[steps, …]``, rewards ``[steps]`` or ``[steps, 1]``, or None.

    Whether it was terminated or truncated is one flag; or ``[steps]`` of them, of which the last counts. At least one step.
    """
    seen, acted = numbers(observations, "observations"), actions(acts)
    given = np.full(len(acted), np.nan) if rewards is None else column(rewards, "rewards").astype(np.float64)
    if len(seen) != len(acted) + 1 or len(given) != len(acted) or not len(acted):
        raise ValueError(
            f"episode {number} has {len(seen)} observations, {len(acted)} actions and {len(given)} rewards; a whole one has one "
            "observation more than actions and rewards"
        )
    ended = True
    for name, said in (("truncations", truncated), ("terminations", terminated)):
        flag = flags(np.atleast_1d(np.asarray(said)), name)
        if len(flag) not in (1, len(acted)):
            raise ValueError(f"episode {number} has {len(flag)} {name} for {len(acted)} actions")
        ended = bool(flag[-1])
    return Trajectory(seen, acted, given, ended)


def check_alike(trajectories: Sequence[Trajectory]) -> None:
    """Check that episodes are of one environment, as far as their shapes say."""
    for name in ("observations", "actions"):
        first, *others = ([*getattr(trajectory, name).shape[1:]] for trajectory in trajectories)
        for number, shape in enumerate(others, 1):
            if shape != first:
                raise ValueError(f"episode {number} has {name} of shape {shape}, and episode 0 of shape {first}")


def unreadable(path: Path | str, error: Exception) -> SettingError:
    """Build the error of a file or folder without recorded steps."""
    reason = getattr(error, "strerror", None) or (f"it lacks {error}" if isinstance(error, KeyError) else error)
    return SettingError(
        f"{path} holds no recorded steps ({reason}): it must be an .npz file with the arrays observations and actions, as "
        "`rlhf-ray record` writes it, a recording, trajectories saved by imitation, or a Minari data set."
    )


def read_imitation(folder: Path) -> list[Trajectory]:
    """Read the trajectories in a folder of Hugging Face datasets.

    Raises:
        SettingError: it holds none.
    """
    trajectories: list[Trajectory] = []
    try:
        for file in json.loads((folder / "state.json").read_text())["_data_files"]:
            with pa.memory_map(str(folder / Path(file["filename"]).name)) as content:
                table = pa.ipc.open_stream(content).read_all().combine_chunks()
            for i in range(len(table)):
                obs, acts = (_of_lists(table[name][i]) for name in ("obs", "acts"))
                rews = _of_lists(table["rews"][i]) if "rews" in table.column_names else None
                ended = table["terminal"][i].as_py()
                trajectories.append(episode(len(trajectories), obs, acts, rews, ended))
        if not trajectories:
            raise ValueError("it has no episodes")
        check_alike(trajectories)
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise unreadable(folder, error) from error
    return trajectories


def write_imitation(trajectories: Iterable[Trajectory], folder: Path | str) -> None:
    """Write a new folder of Hugging Face datasets, which ``imitation.data.serialize.load`` and ``datasets.load_from_disk`` open."""
    name = "data-00000-of-00001.arrow"
    with whole_folder(Path(folder)) as new:
        writer = None
        with pa.OSFile(str(new / name), "wb") as sink:
            for of in trajectories:  # one at a time: the lists need no second copy of all of them
                columns = {"obs": to_lists(of.observations[None]), "acts": to_lists(of.actions[None])}
                columns |= {"infos": pa.array([["{}"] * len(of)]), "terminal": pa.array([of.terminated])}
                batch = pa.record_batch(columns | {"rews": to_lists(np.asarray(of.rewards)[None])})
                writer = writer or pa.ipc.new_stream(sink, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
        state: dict[str, Any] = dict.fromkeys(("_format_columns", "_format_type", "_split"))
        state |= {"_data_files": [{"filename": name}], "_fingerprint": "0" * 16, "_format_kwargs": {}}
        about = dict.fromkeys(("citation", "description", "homepage", "license"), "")
        (new / "state.json").write_text(json.dumps(state | {"_output_all_columns": False}))
        (new / "dataset_info.json").write_text(json.dumps(about))


def _of_lists(row: pa.Scalar) -> Array:
    """Convert one row of nested lists, without nulls and of one length each, to an array of the same dtype."""
    values = getattr(row, "values", None)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values is None:
        raise ValueError("a column holds no lists")
    shape = [len(values)]
    while isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        inner = values.flatten()
        size = len(inner) // max(1, len(values))
        if values.null_count or not np.all(np.asarray(values.value_lengths()) == size):
            raise ValueError("the lists of an observation differ in length")
        shape.append(size)
        values = inner
    if values.null_count or not pa.types.is_primitive(values.type):
        raise ValueError(f"a column holds {values.type} instead of numbers")
    array: Array = values.to_numpy(zero_copy_only=False)
    return array.reshape(shape)


class MinariFolder:
    """Reads the Minari data set at ``path``.

    Attributes:
        observation_space, action_space: the environment's spaces as ours (`rlhf_ray.data.views`): a Dict of numbers is one vector.
        about: the id of the ``environment``; empty if the data set doesn't say.

    Raises:
        SettingError: Minari is not installed, there is no data set at ``path``, or its spaces can't be seen as ours.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def __init__(self, path: Path | str):
        self.path = Path(path)
        storage_class, data = _storage_class(f"{path} is a Minari data set"), minari_data(self.path)
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
            self.about = {"environment": json.loads(metadata["env_spec"])["id"]} if "env_spec" in metadata else {}
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise SettingError(f"{path} can't be read as a Minari data set: {error}.") from error
        seen, acted = view_of(space), action_view_of(acts)
        self._see: Callable[[Any], Array] = seen.see if seen else np.asarray
        self._acted: Callable[[Array], Array] = acted.see if acted else np.asarray
        self.observation_space, self.action_space = seen.space if seen else space, acted.space if acted else acts
        only = "only Box, Discrete, MultiDiscrete and MultiBinary ones can be read"
        if not isinstance(self.observation_space, gym.spaces.Box | gym.spaces.Discrete):
            more = "and Dicts and Tuples of numbers, or of images of one size"
            raise SettingError(f"{path} has observations of {one_line(space)}; {only}, {more}.")
        if not isinstance(self.action_space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            raise SettingError(f"{path} has actions of {one_line(acts)}; {only}.")

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes.

        Raises:
            SettingError: the files are damaged, or an episode does not fit the data set's own spaces.
        """
        spaces = self.observation_space, self.action_space
        try:
            for number, kept in enumerate(self._storage.get_episodes(range(self._storage.total_episodes))):
                acts = shaped(self._acted(numbers(kept["actions"], "actions")), self.action_space)
                ends = kept["terminations"], kept["truncations"]
                read = episode(number, self._see(kept["observations"]), acts, kept["rewards"], *ends)
                check_recorded(read.observations, read.actions, spaces, f"the steps of episode {number}", own=True)
                yield RecordedEpisode(read, truncated=bool(flags(ends[1], "truncations")[-1]))
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise SettingError(f"{self.path} is damaged ({why}): download or convert it again.") from error


def write_minari(
    episodes: Iterable[RecordedEpisode],
    out: Path | str,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    environment: str | None = None,
) -> None:
    """Write a Minari data set, HDF5, with images as they are (no JPEG).

    ``minari.MinariDataset(out / "data")`` opens it; below ``~/.minari/datasets``, ``minari.load_dataset`` does, by its path from
    there.

    Args:
        episodes: the episodes.
        out: the new folder.
        spaces: the environment's observation and action space.
        environment: its gymnasium id; left out if it was registered with a function instead of ``module:Class``.

    Raises:
        SettingError: Minari is not installed.
    """
    out = Path(out)
    storage_class = _storage_class(f"{out} is to be a Minari data set")
    from minari.data_collector import EpisodeBuffer
    from minari.storage.datasets_root_dir import get_dataset_path

    root = Path(get_dataset_path(""))
    full = out.absolute()
    name = re.sub(r"[^-_/\w]", "-", str(full.relative_to(root)) if full.is_relative_to(root) else out.name)
    spec = None if environment is None else gym.registry.get(environment)
    if spec is not None:
        try:
            spec.to_json()
        except ValueError:  # it was registered with a function
            spec = None
    with whole_folder(out) as new:
        data = (new / "data").absolute()  # Minari joins a relative path to itself
        storage = storage_class.new(data, *spaces, spec, data_format="hdf5", jpeg_encoding=False)
        about = {"dataset_id": name if re.search(r"-v\d+$", name) else f"{name}-v0"}
        about |= {"description": "Written by rlhf_ray.", "minari_version": importlib.metadata.version("minari")}
        storage.update_metadata(about)

        def buffer(each: RecordedEpisode) -> Any:
            of, before = each.trajectory, [False] * (len(each.trajectory) - 1)
            ends = {"terminations": [*before, of.terminated], "truncations": [*before, each.truncated]}
            return EpisodeBuffer(observations=of.observations, actions=of.actions, rewards=list(of.rewards), **ends)

        storage.update_episodes(map(buffer, episodes))


def _in_order(space: gym.Space[Any], declared: dict[str, Any]) -> gym.Space[Any]:
    """Give the parts of a Dict the environment's order, in which its numbers become a vector: reading a space sorts them."""
    if isinstance(space, gym.spaces.Dict):
        parts = {name: _in_order(space[name], part) for name, part in declared["subspaces"].items()}
        return gym.spaces.Dict(OrderedDict(parts))
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_in_order(*pair) for pair in zip(space, declared["subspaces"], strict=True)])
    return space


def minari_data(path: Path) -> Path | None:
    """Return the folder with the data of the Minari data set ``path``; None if it is none."""
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
