"""Recordings: whole episodes of any size in a folder of Arrow files, for everything that looks at rewards.

A recording is a folder::

    manifest.json        format, environment, spaces, policies, seed, columns, and the chunks with the lengths of their episodes
    chunk-000000.arrow   an Arrow IPC file with one row per observation; a chunk holds whole episodes

An episode of ``T`` steps has ``T + 1`` rows: each observation is stored once, and the final one is kept. The row of a final
observation (``final`` is true) has no step: its ``action`` is 0 and its rewards are NaN. The columns are ``episode``, ``step``,
``final``, ``observation``, ``action``, ``reward``, ``normalised_reward``, ``terminated``, ``truncated``, ``policy``,
``level_seed``, and ``state.NAME`` for what the environment says about its state at this observation. Episodes of imitation
also have ``infos``, its texts of jsonpickle.

A recording of what goes on inside an agent (`rlhf_ray.agents.recorded`) also has ``logits`` (all inputs of the action
distribution), ``value``, ``memory`` (before each step; in the final row, after the last one), ``activation.NAME`` of layers,
``cause`` (why the episode ended) and, if kept, ``env_state`` (the environment's state at each observation, compressed by zlib). Its
manifest also has the agent's digest, and how levels are split into train, validation and test.

``reward`` is always the true reward. ``normalised_reward`` is that of `RewardNormaliser`, with the discount factor of the recorded
run, or 0.99.

Any Arrow library reads the chunks (polars, DuckDB, pandas). No part is pickled.
"""

from __future__ import annotations

import json
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
from rlhf_ray.data.atomic import left_over, whole_file, whole_folder, write_text
from rlhf_ray.data.columns import to_array, to_column
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recorded_episode import (
    ACTIVATION,
    GAMMA,
    STATE,
    RecordedEpisode,
    RewardNormaliser,
    StateBlobs,
    blank,
    rows_of,
)
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.data.transitions import Transitions

FORMAT = "rlhf_ray.recording/1"
FORMAT_INSIDE = "rlhf_ray.recording/2"
"""With what goes on inside an agent; otherwise the same."""

MANIFEST = "manifest.json"
CHUNK_BYTES = 16 * 2**20
CHUNK_STEPS = 4096
"""A chunk is written once its episodes have this many bytes of observations, or this many steps."""


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
        columns: dtype and shape of each ``state.NAME`` column, and of those of what goes on inside.

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


class RecordingWriter:
    """Writes a recording chunk by chunk, and continues an interrupted one: a killed process loses at most the last chunk.

    The same episodes give the same bytes, with or without interruptions.

    Args:
        path: the folder; created if it doesn't exist.
        observation_space, action_space: the environment's spaces, Box or Discrete.
        about: what the recording depends on, as JSON values. An interrupted recording is continued only with the same values.
        gamma: discount factor of the return that normalises rewards: the agent's, if it is known.

    Raises:
        SettingError: the folder holds another recording, or something else.
    """

    def __init__(
        self,
        path: Path | str,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        about: Mapping[str, Any],
        gamma: float = GAMMA,
    ):
        self.path = Path(path)
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "about": json.loads(json.dumps(about)),
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "complete": False,
            "columns": {},
            "chunks": [],
        }
        if "agent" in self._manifest["about"]:
            self._manifest["format"] = FORMAT_INSIDE
        self._waiting: list[RecordedEpisode] = []
        self._waiting_bytes = 0
        self._normaliser = RewardNormaliser(gamma)
        if (self.path / MANIFEST).exists():
            self._resume()
        elif self.path.exists() and (not self.path.is_dir() or any(not left_over(e.name) for e in self.path.iterdir())):
            raise SettingError(f"out is {path}, which exists and is not a recording; give another folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        for entry in self.path.iterdir():
            if left_over(entry.name):
                entry.unlink()
        self._write_manifest()

    def _resume(self) -> None:
        recording = Recording(self.path)
        mine = self._manifest
        theirs = json.loads((self.path / MANIFEST).read_text())
        for name in ("observation_space", "action_space"):
            if json.loads(json.dumps(mine[name])) != theirs[name]:
                raise SettingError(f"out is {self.path}, a recording with another {name}; give another folder.")
        if differing := [
            n for n in {**recording.about, **mine["about"]} if recording.about.get(n) != mine["about"].get(n)
        ]:
            name = differing[0]
            raise SettingError(
                f"out is {self.path}, a recording with {name}={recording.about.get(name)!r}, not {mine['about'].get(name)!r}; "
                "repeat its command to continue it, or give another folder."
            )
        self._manifest = theirs
        if recording.chunks:
            self._normaliser = RewardNormaliser(**recording.chunks[-1]["normaliser"])

    @property
    def complete(self) -> bool:
        """Whether the recording is finished."""
        return bool(self._manifest["complete"])

    def add(self, episode: RecordedEpisode) -> None:
        """Add the next episode. It is on disk once its chunk is full, or after `finish`."""
        self._waiting.append(episode)
        steps = sum(len(each.trajectory) for each in self._waiting)
        size = sum(
            each.trajectory.observations.nbytes + sum(map(len, each.env_states)) // 4  # compressed
            for each in self._waiting[-1:]
        )
        self._waiting_bytes += size
        if steps >= CHUNK_STEPS or self._waiting_bytes >= CHUNK_BYTES:
            self._write()

    def finish(self) -> None:
        """Write the last chunk and mark the recording as complete."""
        if self._waiting:
            self._write()
        if not self.complete:
            self._manifest["complete"] = True
            self._write_manifest()

    def _write(self) -> None:
        chunks, episodes = self._manifest["chunks"], self._waiting
        first = sum(len(chunk["lengths"]) for chunk in chunks)
        file = self.path / f"chunk-{len(chunks):06d}.arrow"
        names = self._manifest["about"].get("policies") or []
        columns = rows_of(episodes, first, self._normaliser, names)
        for name, values in columns.items():
            if name.startswith(STATE) or is_inside(name):
                kind = [str(values.dtype), list(values.shape[1:])]
                if self._manifest["columns"].setdefault(name, kind) != kind:
                    raise SettingError(
                        f"{name} was {self._manifest['columns'][name]} and is now {kind}; the environment's describe() must return "
                        "arrays of one dtype and shape."
                    )
        table = pa.table({name: v if isinstance(v, pa.Array) else to_column(v) for name, v in columns.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)  # one batch, so that each column is contiguous in the file
        content = sink.getvalue()
        with whole_file(file) as stream:
            stream.write(content)
        chunks.append(
            {
                "file": file.name,
                "crc32": zlib.crc32(content),
                "first_episode": first,
                "lengths": [len(episode.trajectory) for episode in episodes],
                "policies": [episode.policy for episode in episodes],
                "levels": [int(episode.level_seed) for episode in episodes],
                "normaliser": dict(vars(self._normaliser)),
            }
        )
        self._waiting, self._waiting_bytes = [], 0
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_text(self.path / MANIFEST, json.dumps(self._manifest) + "\n")


def is_inside(name: str) -> bool:
    """Return whether a column holds what goes on inside an agent."""
    return name in ("logits", "value", "memory") or name.startswith(ACTIVATION)


def arrays_of(table: pa.Table) -> dict[str, Array]:
    """Return the columns of a chunk as arrays, views of the file if possible; without ``env_state`` and ``infos``."""
    return {name: to_array(table, name) for name in table.column_names if name not in ("env_state", "infos")}


def save(
    transitions: Transitions,
    path: Path | str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Save whole episodes as a recording, with the columns that `Recording.transitions` returns.

    Raises:
        SettingError: the folder ``path`` exists.
        ValueError: a step is missing within an episode.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SettingError(f"out is {path}, which exists; give another folder.")
    with whole_folder(path) as new:
        writer = RecordingWriter(new, observation_space, action_space, about or {})
        for episode in episodes_of(transitions):
            writer.add(episode)
        writer.finish()


def episodes_of(transitions: Transitions) -> Iterator[RecordedEpisode]:
    """Split into episodes.

    Raises:
        ValueError: a step is missing within an episode.
    """
    bounds = np.flatnonzero(np.diff(transitions.episodes)) + 1
    for begin, end in zip([0, *bounds], [*bounds, len(transitions)], strict=True):
        part = transitions[int(begin) : int(end)]
        if (np.diff(part.steps) != 1).any():
            raise ValueError(f"Episode {part.episodes[0]} lacks steps; save transitions before sampling them.")
        states = {
            name.removeprefix(STATE): np.concatenate([values, part.columns[f"next_{name}"][-1:]])
            for name, values in part.columns.items()
            if name.startswith(STATE) and f"next_{name}" in part.columns
        }
        truncated = part.columns.get("truncated")
        yield RecordedEpisode(
            Trajectory(
                np.concatenate([part.observations, part.next_observations[-1:]]),
                part.actions,
                part.rewards,
                bool(part.terminated[-1]),
                int(part.steps[0]),
            ),
            truncated=bool(truncated is not None and truncated[-1]),
            policy=str(part.columns["policy"][0]) if "policy" in part.columns else "",
            level_seed=int(part.columns["level_seed"][0]) if "level_seed" in part.columns else 0,
            states=states,
        )


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
