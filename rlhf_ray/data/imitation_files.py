"""Trajectories of imitation, in and out. Runs no code from them.

``imitation.data.serialize.save`` writes a folder of Hugging Face datasets: one row per episode, with the nested lists ``obs`` (one
more than ``acts``), ``acts``, ``rews``, ``terminal`` and ``infos``, strings of jsonpickle. These are never read, since they could
run code; folders of ours have empty ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data import read_episode
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.columns import to_lists
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory


def read_folder(folder: Path) -> list[Trajectory]:
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
                trajectories.append(read_episode.episode(len(trajectories), obs, acts, rews, ended))
        if not trajectories:
            raise ValueError("it has no episodes")
        read_episode.check_alike(trajectories)
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise read_episode.unreadable(folder, error) from error
    return trajectories


def write_folder(trajectories: Iterable[Trajectory], folder: Path | str) -> None:
    """Write a folder of Hugging Face datasets, which ``imitation.data.serialize.load`` and ``datasets.load_from_disk`` open.

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
            for trajectory in trajectories:  # one at a time: the lists need no second copy of all of them
                columns = {
                    "obs": to_lists(trajectory.observations[None]),
                    "acts": to_lists(trajectory.actions[None]),
                    "infos": pa.array([["{}"] * len(trajectory)]),
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
