"""Recordings: whole episodes of any size in a folder of Arrow files, and recorded episodes of any other format.

A recording is a folder::

    manifest.json        format, environment, spaces, policies, seed, columns, and the chunks with the lengths of their episodes
    chunk-000000.arrow   an Arrow IPC file with one row per observation; a chunk holds whole episodes

An episode of ``T`` steps has ``T + 1`` rows: each observation is stored once, and the final one is kept. The row of a final
observation (``final`` is true) has no step: its ``action`` is 0 and its rewards are NaN. The columns are ``episode``, ``step``,
``final``, ``observation``, ``action``, ``reward``, ``normalised_reward``, ``terminated``, ``truncated``, ``policy``,
``level_seed``, and ``state.NAME`` for what the environment says about its state at this observation.

A recording with an agent's internals (`rlhf_ray.agents.recorded`) also has ``logits`` (all inputs of the action
distribution), ``value``, ``memory`` (before each step; in the final row, after the last one), ``activation.NAME`` of layers,
``cause`` (why the episode ended) and, if kept, ``env_state`` (the environment's state at each observation, compressed by zlib). Its
manifest also has the agent's digest, and how levels are split into train, validation and test.

``reward`` is always the true reward. ``normalised_reward`` is that of `RewardNormaliser`, with the discount factor of the recorded
run, or 0.99.

Any Arrow library reads the chunks (polars, DuckDB, pandas). No part is pickled.
"""

import json
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data import other_formats
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.columns import to_array
from rlhf_ray.data.demonstrations import Demonstrations, spaces_of_file
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.spaces import one_line, space_from_json
from rlhf_ray.data.transitions import ACTIVATION, STATE, RecordedEpisode, StateBlobs, Transitions, steps_of

FORMAT = "rlhf_ray.recording/1"
FORMAT_INSIDE = "rlhf_ray.recording/2"
"""With an agent's internals; otherwise the same."""

MANIFEST = "manifest.json"

BLOBS = "env_state"
"""The column with the environment's states."""

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
            raise SettingError(f"{path} is not a recording (no {MANIFEST}); give one from `rlhf-ray record`.") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise SettingError(f"{file} can't be read ({why}): restore it from a backup, or record again.") from error

    def __len__(self) -> int:
        """Return the number of steps."""
        return sum(self.lengths)

    def steps_of_policies(self) -> Counter[str]:
        """Count the steps of each policy."""
        return sum((Counter({name: n}) for name, n in zip(self.policies, self.lengths, strict=True)), Counter[str]())

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yield the episodes. Their observations are views of the files."""
        for chunk in self.chunks:
            table = self.table(chunk)
            rows, first = arrays_of(table), 0
            for length in chunk["lengths"]:
                frames, steps, last = slice(first, first + length + 1), slice(first, first + length), first + length - 1
                arrays = rows["observation"][frames], rows["action"][steps], rows["reward"][steps]
                yield RecordedEpisode(
                    Trajectory(*arrays, bool(rows["terminated"][last]), int(rows["step"][first])),
                    truncated=bool(rows["truncated"][last]),
                    policy=str(rows["policy"][first]),
                    level_seed=int(rows["level_seed"][first]),
                    states={n.removeprefix(STATE): v[frames] for n, v in rows.items() if n.startswith(STATE)},
                    cause=str(rows["cause"][first]) if "cause" in rows else "",
                    inside={n: v[frames if n == "memory" else steps] for n, v in rows.items() if is_inside(n)},
                    env_states=StateBlobs(table[BLOBS], first, length + 1) if BLOBS in table.column_names else (),
                    normalised=rows["normalised_reward"][steps],
                )
                first += length + 1

    def transitions(self, most: int | None = None) -> Transitions:
        """Load the first ``most`` steps (`rlhf_ray.data.transitions.steps_of`); all by default."""
        if not self.chunks:
            raise SettingError(
                f"{self.path} has no whole chunk yet; continue the recording with the command that began it."
            )
        return steps_of(self, most)

    def table(self, chunk: Mapping[str, Any]) -> pa.Table:
        """Memory-map a chunk of `chunks`, after checking it against the manifest.

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
            rows, ends = arrays_of(table), np.cumsum(np.array(chunk["lengths"], np.int64) + 1) - 1
            if not np.array_equal(rows["final"], np.isin(np.arange(int(ends[-1]) + 1), ends)):
                raise ValueError("its episodes are not those of the manifest")
            for name, space in (("observation", self.observation_space), ("action", self.action_space)):
                if (shape := rows[name].shape[1:]) != space.shape:
                    raise ValueError(f"its column {name} has shape {shape}, not the space's {space.shape}")
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise SettingError(f"{file} is damaged ({error}): restore it from a backup, or record again.") from error
        return table


def is_inside(name: str) -> bool:
    """Return whether a column holds an agent's internals."""
    return name in ("logits", "value", "memory") or name.startswith(ACTIVATION)


def arrays_of(table: pa.Table) -> dict[str, Array]:
    """Return the columns of a chunk as arrays, views of the file if possible; without `BLOBS`."""
    return {name: to_array(table, name) for name in table.column_names if name != BLOBS}


@dataclass(frozen=True)
class EpisodeSource:
    """Whole episodes, and what their files say about them.

    Attributes:
        episodes: the episodes; each iteration may read them anew.
        observation_space, action_space: the environment's spaces; None if unknown.
        about: what a recording says about itself, or the name of the ``environment``.
    """

    episodes: Iterable[RecordedEpisode]
    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    about: Mapping[str, Any]


def open_episodes(path: Path | str) -> EpisodeSource:
    """Open recorded episodes: a recording, an ``.npz``, imitation's folder, or a Minari data set. Runs no code from them.

    Raises:
        SettingError: ``path`` holds none; the message says what is missing.
    """
    path, found = Path(path), _with_spaces(Path(path))
    if found is not None:
        return EpisodeSource(found, found.observation_space, found.action_space, found.about)
    if (path / "config.json").exists():
        raise SettingError(
            f"{path} is a run folder; load its steps with rlhf_ray.runs.interpret.load_steps, or record its policy."
        )
    if path.is_dir():
        trajectories = other_formats.read_imitation(path)
        return EpisodeSource([RecordedEpisode(of, not of.terminated) for of in trajectories], None, None, {})
    episodes = Demonstrations.load(path).episodes()
    if not episodes:
        raise SettingError(
            f"{path} has no step whose next observation is known; add the array next_observations, or give longer episodes."
        )
    return EpisodeSource(episodes, *spaces_of_file(path), {})


def _with_spaces(path: Path) -> Recording | other_formats.MinariFolder | None:
    if (path / MANIFEST).exists():
        return Recording(path)
    return other_formats.MinariFolder(path) if other_formats.minari_data(path) else None


def load_demonstrations(path: Path | str) -> Demonstrations:
    """Load the steps of anything that `open_episodes` reads; of an ``.npz``, observations and actions are enough.

    Raises:
        SettingError: ``path`` holds no demonstrations; the message says what is missing.
    """
    if not Path(path).is_dir():
        return Demonstrations.load(path)
    return Demonstrations.of([episode.trajectory for episode in open_episodes(path).episodes])


def load_transitions(path: Path | str, most: int | None = None) -> Transitions:
    """Load steps from anything that `open_episodes` reads. For a run folder, use `rlhf_ray.runs.interpret.load_steps`.

    Returns:
        The first ``most`` steps (None: all), with episodes numbered from 0, and ``truncated`` among the columns.

    Raises:
        SettingError: ``path`` holds nothing of these; the message says what is missing.
    """
    episodes = open_episodes(path).episodes
    return episodes.transitions(most) if isinstance(episodes, Recording) else steps_of(episodes, most)


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
    path, found = Path(path), _with_spaces(Path(path))
    of_file = spaces_of_file(path)[0] if found is None and path.is_file() else None
    known = of_file if found is None else found.observation_space
    if known is not None and known != space:
        logger.warning(
            "%s has observations of %s, and the model or environment has %s: the same number may mean something else in each.",
            path,
            one_line(known),
            one_line(space),
        )
    return known == space
