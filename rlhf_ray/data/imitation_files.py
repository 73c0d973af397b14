"""Files of imitation: its trajectories in and out, in all of its layouts. Runs no code from them.

* A folder of Hugging Face datasets, as ``imitation.data.serialize.save`` writes it: one row per episode, with the nested lists
  ``obs`` (one more than ``acts``), ``acts``, ``rews``, ``terminal`` and ``infos`` (strings of jsonpickle).
* The legacy ``.npz``: ``obs`` ``[n + episodes, …]`` of all episodes joined, each with its final one; ``acts`` and ``rews``
  ``[n, …]``; ``terminal`` ``[episodes]``; ``indices`` ``[episodes - 1]``, the number of steps before each episode but the first;
  and ``infos``.
* The oldest: a pickled list of ``Trajectory`` or ``TrajectoryWithRew``. It is read, by an unpickler that builds only what it lists,
  and not written.

``infos`` are never unpickled. Those of a folder are passed on as texts; other written files have empty ones.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data import pickles, read_episode
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_file, whole_folder
from rlhf_ray.data.columns import to_lists
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory


def is_legacy(file: Path) -> bool:
    """Return whether ``file`` is a legacy ``.npz`` of imitation."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {"obs.npy", "acts.npy", "indices.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read_npz(file: Path) -> list[Trajectory]:
    """Read the trajectories in a legacy ``.npz``. Unpickles nothing.

    Raises:
        SettingError: it holds none, or needs unpickling.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            obs, acts, indices, terminal = (arrays[name] for name in ("obs", "acts", "indices", "terminal"))
            rews = arrays["rews"] if "rews" in arrays else np.full(len(acts), np.nan)
        rews, terminal, indices = (
            read_episode.column(rews, "rews"),
            read_episode.flags(terminal, "terminal"),
            read_episode.column(indices, "indices") if indices.size else indices.reshape(-1),
        )
        bounds = np.array([0, *indices, len(acts)], dtype=np.int64)
        if (np.diff(bounds) < 1).any() or len(obs) != len(acts) + len(terminal) or len(bounds) != len(terminal) + 1:
            raise ValueError(
                f"{len(obs)} observations, {len(acts)} actions and {len(terminal)} episodes don't fit together"
            )
        if len(rews) != len(acts):
            raise ValueError(f"it has {len(rews)} rewards for {len(acts)} actions")
        return [
            read_episode.episode(i, obs[a + i : b + i + 1], acts[a:b], rews[a:b], terminal[i])
            for i, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        ]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise SettingError(
            f"{file} holds no trajectories of imitation that can be read without unpickling ({error}): save them again with "
            "imitation.data.serialize.save."
        ) from error


def is_pickle(file: Path) -> bool:
    """Return whether ``file`` begins as a pickle does."""
    with file.open("rb") as content:
        return content.read(1) == b"\x80"


def read_pickle(file: Path) -> list[Trajectory]:
    """Read the trajectories in a pickle of imitation's first versions. Runs no code from it.

    Raises:
        SettingError: it holds none, or refers to other classes than imitation's and numpy's arrays.
    """
    try:
        content = pickles.load(file.read_bytes())
        if not isinstance(content, list | tuple) or not content:
            raise TypeError(f"it holds a {type(content).__name__}")
        made: list[Trajectory] = []
        for item in content:
            rews = pickles.stack(item.rews) if hasattr(item, "rews") else None
            ended = pickles.array_of(item.terminal)
            made.append(read_episode.episode(len(made), pickles.stack(item.obs), pickles.stack(item.acts), rews, ended))
        read_episode.check_alike(made)
    except (*pickles.ERRORS, OSError) as error:
        raise SettingError(
            f"{file} holds no trajectories of imitation ({pickles.reason(error)}); it must be a pickled list of its trajectories."
        ) from error
    return made


def read_folder(folder: Path) -> list[Trajectory]:
    """Read the trajectories in a folder of Hugging Face datasets.

    Raises:
        OSError, ValueError, KeyError, TypeError, pa.ArrowInvalid: it holds none.
    """
    trajectories: list[Trajectory] = []
    for table in _tables(folder):
        for i in range(len(table)):
            obs, acts = (_of_lists(table[name][i]) for name in ("obs", "acts"))
            rews = _of_lists(table["rews"][i]) if "rews" in table.column_names else None
            trajectories.append(read_episode.episode(len(trajectories), obs, acts, rews, table["terminal"][i].as_py()))
    if not trajectories:
        raise ValueError("it has no episodes")
    read_episode.check_alike(trajectories)
    return trajectories


def read_infos(folder: Path) -> list[tuple[str, ...]]:
    """Read the texts in ``infos`` of a folder that `read_folder` reads, one for each step of each episode; empty without any."""
    rows: list[tuple[str, ...]] = []
    for table in _tables(folder):
        texts = table["infos"].to_pylist() if "infos" in table.column_names else [None] * len(table)
        for infos, steps in zip(texts, table["acts"], strict=True):
            whole = (
                infos is not None and len(infos) == len(steps.values) and all(isinstance(info, str) for info in infos)
            )
            rows.append(tuple(infos) if whole else ())
    return rows


def _tables(folder: Path) -> Iterator[pa.Table]:
    for file in json.loads((folder / "state.json").read_text())["_data_files"]:
        name = Path(file["filename"])
        with pa.memory_map(str(folder / name.name)) as content:
            yield pa.ipc.open_stream(content).read_all().combine_chunks()


def write_npz(trajectories: Sequence[Trajectory], file: Path | str) -> None:
    """Write a legacy ``.npz``, which ``imitation.data.serialize.load`` opens. Nothing in it is pickled."""
    lengths = [len(trajectory) for trajectory in trajectories]
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as sink:
        np.savez_compressed(
            sink,
            obs=np.concatenate([trajectory.observations for trajectory in trajectories]),
            acts=np.concatenate([trajectory.actions for trajectory in trajectories]),
            rews=np.concatenate([trajectory.rewards for trajectory in trajectories]),
            infos=np.zeros((sum(lengths), 0)),
            terminal=np.array([trajectory.terminated for trajectory in trajectories]),
            indices=np.cumsum(lengths)[:-1],
        )


def write_folder(
    trajectories: Sequence[Trajectory], folder: Path | str, infos: Sequence[Sequence[str]] | None = None
) -> None:
    """Write a folder of Hugging Face datasets, which ``imitation.data.serialize.load`` and ``datasets.load_from_disk`` open.

    Args:
        trajectories: the episodes.
        folder: the new folder.
        infos: texts of jsonpickle for each step of each episode, from `read_infos`; an empty info where there are none.

    Raises:
        SettingError: ``folder`` exists.
    """
    folder = Path(folder)
    if folder.exists():
        raise SettingError(f"out is {folder}, which exists; give another folder.")
    name = "data-00000-of-00001.arrow"
    with whole_folder(folder) as new:
        writer = None
        with pa.OSFile(str(new / name), "wb") as sink:
            for number, trajectory in enumerate(
                trajectories
            ):  # an episode at a time: the lists need no second copy of all of them
                columns = {
                    "obs": to_lists(trajectory.observations[None]),
                    "acts": to_lists(trajectory.actions[None]),
                    "infos": pa.array([list(infos[number] if infos and infos[number] else ["{}"] * len(trajectory))]),
                    "terminal": pa.array([trajectory.terminated]),
                    "rews": to_lists(np.asarray(trajectory.rewards)[None]),
                }
                batch = pa.record_batch(columns)
                writer = writer or pa.ipc.new_stream(sink, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
        state: dict[str, Any] = {
            "_data_files": [{"filename": name}],
            "_fingerprint": "0" * 16,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        (new / "state.json").write_text(json.dumps(state, indent=2))
        (new / "dataset_info.json").write_text(
            json.dumps({"citation": "", "description": "", "homepage": "", "license": ""})
        )


def _of_lists(row: pa.Scalar) -> Array:
    """Convert one row of nested lists to an array of the same dtype.

    Raises:
        ValueError: the lists differ in length, or hold nulls.
    """
    values = getattr(row, "values", None)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values is None:
        raise ValueError("a column holds no lists")
    shape = [len(values)]
    while (
        pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_fixed_size_list(values.type)
    ):
        inner = values.flatten()
        size = len(inner) // max(1, len(values))
        if values.null_count or not np.all(np.asarray(values.value_lengths()) == size):
            raise ValueError("the lists of an observation differ in length")
        shape.append(size)
        values = inner
    if values.null_count or not (pa.types.is_primitive(values.type)):
        raise ValueError(f"a column holds {values.type} instead of numbers")
    array: Array = values.to_numpy(zero_copy_only=False)
    return array.reshape(shape)
