"""Recordings: whole episodes of any size in a folder of Arrow files, for everything that looks at rewards.

A recording is a folder::

    manifest.json        format, environment, spaces, policies, seed, columns, and the chunks with the lengths of their episodes
    chunk-000000.arrow   an Arrow IPC file with one row per observation; a chunk holds whole episodes

An episode of ``T`` steps has ``T + 1`` rows: each observation is stored once, and the final one is kept. The row of a final
observation (``final`` is true) has no step: its ``action`` is 0 and its rewards are NaN. The columns are ``episode``, ``step``,
``final``, ``observation``, ``action``, ``reward``, ``normalised_reward``, ``terminated``, ``truncated``, ``policy``,
``level_seed``, and ``state.NAME`` for what the environment says about its state at this observation. Episodes of imitation
also have ``infos``, its texts of jsonpickle.

A recording with an agent's internals (`rlhf_ray.agents.recorded`) also has ``logits`` (all inputs of the action
distribution), ``value``, ``memory`` (before each step; in the final row, after the last one), ``activation.NAME`` of layers,
``cause`` (why the episode ended) and, if kept, ``env_state`` (the environment's state at each observation, compressed by zlib). Its
manifest also has the agent's digest, and how levels are split into train, validation and test.

``reward`` is always the true reward. ``normalised_reward`` is that of `RewardNormaliser`, with the discount factor of the recorded
run, or 0.99.

Any Arrow library reads the chunks (polars, DuckDB, pandas). No part is pickled.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data import minari_files
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.columns import to_array
from rlhf_ray.data.demonstrations import Demonstrations, spaces_of_file
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recorded_episode import (
    ACTIVATION,
    STATE,
    RecordedEpisode,
    StateBlobs,
    blank,
)
from rlhf_ray.data.spaces import one_line, space_from_json
from rlhf_ray.data.transitions import Transitions

FORMAT = "rlhf_ray.recording/1"
FORMAT_INSIDE = "rlhf_ray.recording/2"
"""With an agent's internals; otherwise the same."""

MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


class Recording:
    """Reads the recording in the folder ``path``, which may still grow. Observations are memory-mapped.

    Attributes:
        path: the folder.
        about: what `RecordingWriter` was given: environment, policies, seed, …
        observation_space, action_space: the environment's spaces.
        complete: whether the recording was finished.
        lengths: steps of each episode.
        policies: name of the policy of each episode.
        levels: level seed of each episode.
        columns: dtype and shape of each ``state.NAME`` column, and of those of the internals.

    Raises:
        SettingError: there is no recording at ``path``, or its manifest is damaged.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        file = self.path / MANIFEST
        try:
            manifest = json.loads(file.read_text())
            if manifest["format"] not in (FORMAT, FORMAT_INSIDE):
                raise ValueError(f"its format is {manifest['format']!r}, not {FORMAT!r} or {FORMAT_INSIDE!r}")
            self.about: dict[str, Any] = manifest["about"]
            self.observation_space = space_from_json(manifest["observation_space"])
            self.action_space = space_from_json(manifest["action_space"])
            self.complete = bool(manifest["complete"])
            self.columns: dict[str, tuple[str, list[int]]] = {
                name: (str(np.dtype(kind)), list(map(int, shape)))
                for name, (kind, shape) in manifest["columns"].items()
            }
            self.chunks: list[dict[str, Any]] = manifest["chunks"]
            self.lengths = [int(length) for chunk in self.chunks for length in chunk["lengths"]]
            self.policies = [str(name) for chunk in self.chunks for name in chunk["policies"]]
            if len(self.policies) != len(self.lengths) or min(self.lengths, default=1) < 1:
                raise ValueError("its lengths and policies don't fit together")
            self.levels = [int(level) for chunk in self.chunks for level in chunk["levels"]]
        except FileNotFoundError:
            raise SettingError(
                f"{path} is not a recording (no {MANIFEST}); give a folder from `rlhf-ray record`."
            ) from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise SettingError(f"{file} can't be read ({why}): restore it from a backup, or record again.") from error

    def __len__(self) -> int:
        """Return the number of steps."""
        return sum(self.lengths)

    def steps_of_policies(self) -> Counter[str]:
        """Count the steps of each policy."""
        steps: Counter[str] = Counter()
        for policy, length in zip(self.policies, self.lengths, strict=True):
            steps[policy] += length
        return steps

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes. Their observations are views of the files."""
        for chunk in self.chunks:
            table = self.table(chunk)
            rows = arrays_of(table)
            first = 0
            for length in chunk["lengths"]:
                frames, steps = slice(first, first + length + 1), slice(first, first + length)
                yield RecordedEpisode(
                    Trajectory(
                        rows["observation"][frames],
                        rows["action"][steps],
                        rows["reward"][steps],
                        bool(rows["terminated"][steps][-1:].any()),
                        int(rows["step"][first]),
                    ),
                    truncated=bool(rows["truncated"][steps][-1:].any()),
                    policy=str(rows["policy"][first]),
                    level_seed=int(rows["level_seed"][first]),
                    states={
                        name.removeprefix(STATE): values[frames]
                        for name, values in rows.items()
                        if name.startswith(STATE)
                    },
                    cause=str(rows["cause"][first]) if "cause" in rows else "",
                    inside={
                        name: values[frames if name == "memory" else steps]
                        for name, values in rows.items()
                        if is_inside(name)
                    },
                    infos=table["infos"].slice(first, length).to_pylist() if "infos" in table.column_names else (),
                    env_states=StateBlobs(table["env_state"], first, length + 1)
                    if "env_state" in table.column_names
                    else (),
                )
                first += length + 1

    def transitions(self, most: int | None = None) -> Transitions:
        """Load the first ``most`` steps; all by default.

        Columns: ``truncated``, ``normalised_reward``, ``level_seed``, ``policy``, and ``state.NAME`` and ``next_state.NAME``, which
        are NaN (0 for integers) where the environment did not say.
        """
        total = len(self) if most is None else min(most, len(self))
        names = {"rewards": "reward", "terminated": "terminated", "episodes": "episode", "steps": "step"}
        columns = ("truncated", "normalised_reward", "level_seed", "policy")
        taken: dict[str, list[Array]] = {name: [] for name in (*names.values(), "action", *columns)}
        frames: dict[str, Array] = {}
        begin = 0
        for chunk in self.chunks:
            if begin == total:
                break
            rows = arrays_of(self.table(chunk))
            steps = np.flatnonzero(~rows["final"])[: total - begin]
            for name, parts in taken.items():
                parts.append(rows[name][steps])
            for name in ("observation", *(each for each in self.columns if each in rows and each.startswith(STATE))):
                values = rows[name]
                for key, rows_wanted in ((name, steps), (f"next_{name}", steps + 1)):
                    if key not in frames:
                        frames[key] = blank(total, values.dtype, values.shape[1:])
                    frames[key][begin : begin + len(steps)] = values[rows_wanted]
            begin += len(steps)
        if not frames:
            raise SettingError(
                f"{self.path} has no whole chunk yet; continue the recording with the command that began it."
            )
        joined = {name: np.concatenate(parts) for name, parts in taken.items()}
        return Transitions(
            observations=frames.pop("observation"),
            actions=joined["action"],
            next_observations=frames.pop("next_observation"),
            **{name: joined[column] for name, column in names.items()},
            columns={name: joined[name] for name in columns} | frames,
        )

    def _check(self, chunk: Mapping[str, Any], rows: Mapping[str, Array]) -> None:
        """Check a chunk against what the manifest says of it."""
        ends = np.cumsum(np.array(chunk["lengths"], np.int64) + 1) - 1
        final = np.zeros(int(ends[-1]) + 1, bool)
        final[ends] = True
        if not np.array_equal(rows["final"], final):
            raise ValueError("its episodes are not those of the manifest")
        for name, space in (("observation", self.observation_space), ("action", self.action_space)):
            if rows[name].shape[1:] != space.shape:
                raise ValueError(f"its column {name} has shape {rows[name].shape[1:]}, not the space's {space.shape}")

    def table(self, chunk: Mapping[str, Any]) -> pa.Table:
        """Memory-map a chunk of `chunks`, after checking its bytes.

        Raises:
            SettingError: the file is missing or damaged.
        """
        file = self.path / str(chunk["file"])
        try:
            if file.parent != self.path:
                raise ValueError("it is outside of the recording")
            with pa.memory_map(str(file)) as source:
                content = source.read_buffer()
                if zlib.crc32(content) != chunk["crc32"]:
                    raise ValueError("its checksum differs from the manifest's")
                table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
            self._check(chunk, arrays_of(table))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise SettingError(f"{file} is damaged ({error}): restore it from a backup, or record again.") from error
        return table


def is_inside(name: str) -> bool:
    """Return whether a column holds an agent's internals."""
    return name in ("logits", "value", "memory") or name.startswith(ACTIVATION)


def arrays_of(table: pa.Table) -> dict[str, Array]:
    """Return the columns of a chunk as arrays, views of the file if possible; without ``env_state`` and ``infos``."""
    return {name: to_array(table, name) for name in table.column_names if name not in ("env_state", "infos")}


def load_demonstrations(path: Path | str) -> Demonstrations:
    """Load the steps of a recording, or of anything that `Demonstrations.load` reads.

    Raises:
        SettingError: ``path`` holds no demonstrations; the message says what is missing.
    """
    if (Path(path) / MANIFEST).exists():
        return Demonstrations.of([episode.trajectory for episode in Recording(path)])
    return Demonstrations.load(path)


def load_transitions(path: Path | str, most: int | None = None) -> Transitions:
    """Load steps from a recording, demonstrations, trajectories saved by imitation, or a Minari data set. Runs no code from them.

    Args:
        path: a recording's folder; an ``.npz`` from `Demonstrations.save`; imitation's folder (Hugging Face datasets), its legacy
            ``.npz`` or its oldest pickle; a Minari data set. For a run folder, use `rlhf_ray.runs.steps.load_steps`.
        most: maximum number of steps, taken from the start; None for all.

    Returns:
        The steps, with episodes numbered from 0, and ``truncated`` among the columns.

    Raises:
        SettingError: ``path`` holds nothing of these; the message says what is missing.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return Recording(path).transitions(most)
    if (path / "config.json").exists():
        raise SettingError(
            f"{path} is a run folder; load its steps with rlhf_ray.runs.steps.load_steps, or record its policy."
        )
    if minari_files.is_minari(path):
        episodes = list(minari_files.MinariFolder(path))
        trajectories = [episode.trajectory for episode in episodes]
        cut = [
            (np.arange(len(episode.trajectory)) == len(episode.trajectory) - 1) & episode.truncated
            for episode in episodes
        ]
        timeouts: Array | None = np.concatenate(cut)
    else:
        demonstrations = Demonstrations.load(path)
        trajectories, timeouts = demonstrations.trajectories(), demonstrations.timeouts
    if not any(map(len, trajectories)):
        raise SettingError(
            f"{path} has no step whose next observation is known; add the array next_observations, or give longer episodes."
        )
    steps = Transitions.of_trajectories(trajectories)
    last = np.cumsum([len(episode) for episode in trajectories]) - 1
    truncated = np.zeros(len(steps), bool)
    truncated[last] = ~steps.terminated[last]
    if timeouts is not None and len(timeouts) == len(steps):
        truncated = timeouts.astype(bool)
    return steps.with_(columns={"truncated": truncated})[: len(steps) if most is None else most]


def environment_of(path: Path | str) -> str | None:
    """Return the name of the environment that a recording is of; None if ``path`` is no recording or doesn't say."""
    if not (Path(path) / MANIFEST).exists():
        return None
    name = Recording(path).about.get("environment")
    return name if isinstance(name, str) else None


def recorded_in(path: Path | str, space: gym.Space[Any]) -> bool:
    """Return whether ``path`` says that its observation space is ``space``: a recording, an ``.npz`` of ours, or a Minari data set.

    A known space that is another one is logged: its numbers may mean something else.
    """
    if (Path(path) / MANIFEST).exists():
        known: gym.Space[Any] | None = Recording(path).observation_space
    elif minari_files.is_minari(Path(path)):
        known = minari_files.MinariFolder(Path(path)).observation_space
    else:
        known = spaces_of_file(Path(path))[0] if Path(path).is_file() else None
    if known is not None and known != space:
        logger.warning(
            "%s has observations of %s, and the model or environment has %s: the same number may mean something else in each.",
            path,
            one_line(known),
            one_line(space),
        )
    return known == space
