"""Recordings: whole episodes of any size in a folder of Arrow files, for everything that looks at rewards.

A recording is a folder::

    manifest.json        format, environment, spaces, policies, seed, columns, and the chunks with the lengths of their episodes
    chunk-000000.arrow   an Arrow IPC file with one row per observation; a chunk holds whole episodes

An episode of ``T`` steps has ``T + 1`` rows: each observation is stored once, and the final one is kept. The row of a final
observation (``final`` is true) has no step: its ``action`` is 0 and its rewards are NaN. The columns are ``episode``, ``step``,
``final``, ``observation``, ``action``, ``reward``, ``normalised_reward``, ``terminated``, ``truncated``, ``policy``,
``level_seed``, and ``state.NAME`` for what the environment says about its state at this observation.

``reward`` is always the true reward. ``normalised_reward`` is that of `RewardNormaliser`.

Any Arrow library reads the chunks (polars, DuckDB, pandas). No part is pickled.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data import imitation_files
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import left_over, whole_file, write_text
from rlhf_ray.data.columns import to_array, to_column
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.data.transitions import Transitions

FORMAT = "rlhf_ray.recording/1"
MANIFEST = "manifest.json"
CHUNK_BYTES = 16 * 2**20
CHUNK_STEPS = 4096
"""A chunk is written once its episodes have this many bytes of observations, or this many steps."""

STATE = "state."
"""Prefix of the columns with the environment's state."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One whole episode.

    Attributes:
        trajectory: its steps.
        truncated: whether it was truncated after its last step. If it was neither truncated nor terminated, it was cut.
        policy: name of the policy that acted.
        level_seed: seed of its level, or of its reset if the environment has no levels.
        states: arrays ``[steps + 1, …]`` by name: what the environment says about its state, at each observation.
    """

    trajectory: Trajectory
    truncated: bool = False
    policy: str = ""
    level_seed: int = 0
    states: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class RewardNormaliser:
    """Divides rewards by the running standard deviation of the discounted return, clipped to ±10.

    This is what ``VecNormalize`` of stable-baselines3 (``norm_obs=False``, one environment) and the published Procgen agents do to
    rewards. RLlib's PPO has no such option.

    Attributes:
        gamma: discount factor of the return.
        count, mean, variance: of the discounted returns so far.
    """

    gamma: float = 0.99
    count: float = 1e-4
    mean: float = 0.0
    variance: float = 1.0

    def __call__(self, rewards: FloatArray) -> FloatArray:
        """Normalise the rewards ``[n]`` of the next episode. Unknown rewards (NaN) stay unknown."""
        normalised = np.full(len(rewards), np.nan)
        ret = 0.0
        for i, reward in enumerate(rewards.tolist()):
            if reward != reward:
                continue
            ret = self.gamma * ret + reward
            delta, total = ret - self.mean, self.count + 1.0
            squares = self.variance * self.count + delta * delta * self.count / total
            self.mean += delta / total
            self.count, self.variance = total, squares / total
            normalised[i] = min(10.0, max(-10.0, reward / (self.variance + 1e-8) ** 0.5))
        return normalised


class Recording:
    """Reads the recording in the folder ``path``, which may still grow. Observations are memory-mapped.

    Attributes:
        path: the folder.
        about: what `RecordingWriter` was given: environment, policies, seed, …
        observation_space, action_space: the environment's spaces.
        complete: whether the recording was finished.
        lengths: steps of each episode.
        policies: name of the policy of each episode.
        columns: dtype and shape of each ``state.NAME`` column.

    Raises:
        SettingError: there is no recording at ``path``, or its manifest is damaged.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        file = self.path / MANIFEST
        try:
            manifest = json.loads(file.read_text())
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r}, not {FORMAT!r}")
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
            rows = self._rows(chunk)
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
            rows = self._rows(chunk)
            steps = np.flatnonzero(~rows["final"])[: total - begin]
            for name, parts in taken.items():
                parts.append(rows[name][steps])
            for name in ("observation", *(each for each in self.columns if each in rows)):
                values = rows[name]
                for key, of in ((name, steps), (f"next_{name}", steps + 1)):
                    if key not in frames:
                        frames[key] = _blank(total, values.dtype, values.shape[1:])
                    frames[key][begin : begin + len(steps)] = values[of]
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

    def _rows(self, chunk: Mapping[str, Any]) -> dict[str, Array]:
        """Return the columns of a chunk, after checking its bytes."""
        file = self.path / str(chunk["file"])
        try:
            if file.parent != self.path:
                raise ValueError("it is outside of the recording")
            with pa.memory_map(str(file)) as source:
                content = source.read_buffer()
                if zlib.crc32(content) != chunk["crc32"]:
                    raise ValueError("its checksum differs from the manifest's")
                table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
            return {name: to_array(table, name) for name in table.column_names}
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise SettingError(f"{file} is damaged ({error}): restore it from a backup, or record again.") from error


class RecordingWriter:
    """Writes a recording chunk by chunk, and continues an interrupted one: a killed process loses at most the last chunk.

    The same episodes give the same bytes, with or without interruptions.

    Args:
        path: the folder; created if it doesn't exist.
        observation_space, action_space: the environment's spaces, Box or Discrete.
        about: what the recording depends on, as JSON values. An interrupted recording is continued only with the same values.

    Raises:
        SettingError: the folder holds another recording, or something else.
    """

    def __init__(
        self,
        path: Path | str,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        about: Mapping[str, Any],
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
        self._waiting: list[RecordedEpisode] = []
        self._normaliser = RewardNormaliser()
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
        size = sum(each.trajectory.observations.nbytes for each in self._waiting)
        if steps >= CHUNK_STEPS or size >= CHUNK_BYTES:
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
        columns = _rows_of(episodes, first, self._normaliser, names)
        for name, values in columns.items():
            if name.startswith(STATE):
                kind = [str(values.dtype), list(values.shape[1:])]
                if self._manifest["columns"].setdefault(name, kind) != kind:
                    raise SettingError(
                        f"The environment's {name} was {self._manifest['columns'][name]} and is now {kind}; describe() must "
                        "return arrays of one dtype and shape."
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
                "lengths": [len(each.trajectory) for each in episodes],
                "policies": [each.policy for each in episodes],
                "normaliser": dict(vars(self._normaliser)),
            }
        )
        self._waiting = []
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_text(self.path / MANIFEST, json.dumps(self._manifest) + "\n")


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
    writer = RecordingWriter(path, observation_space, action_space, about or {})
    if writer.complete:
        raise SettingError(f"out is {path}, which exists; give another folder.")
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
        of = transitions[int(begin) : int(end)]
        if (np.diff(of.steps) != 1).any():
            raise ValueError(f"Episode {of.episodes[0]} lacks steps; save transitions before sampling them.")
        states = {
            name.removeprefix(STATE): np.concatenate([values, of.columns[f"next_{name}"][-1:]])
            for name, values in of.columns.items()
            if name.startswith(STATE) and f"next_{name}" in of.columns
        }
        truncated = of.columns.get("truncated")
        yield RecordedEpisode(
            Trajectory(
                np.concatenate([of.observations, of.next_observations[-1:]]),
                of.actions,
                of.rewards,
                bool(of.terminated[-1]),
                int(of.steps[0]),
            ),
            truncated=bool(truncated is not None and truncated[-1]),
            policy=str(of.columns["policy"][0]) if "policy" in of.columns else "",
            level_seed=int(of.columns["level_seed"][0]) if "level_seed" in of.columns else 0,
            states=states,
        )


def _rows_of(
    episodes: Sequence[RecordedEpisode], first: int, normalise: RewardNormaliser, policies: Sequence[str]
) -> dict[str, Any]:
    """Convert episodes to the columns of a chunk: one row per observation."""
    lengths = [len(each.trajectory) for each in episodes]
    sizes = np.array(lengths) + 1
    last = np.cumsum(sizes) - 1
    final = np.zeros(int(sizes.sum()), bool)
    final[last] = True
    names = list(dict.fromkeys([*policies, *(each.policy for each in episodes)]))
    which = np.repeat(np.array([names.index(each.policy) for each in episodes], np.int8), sizes)

    def of_steps(parts: Sequence[Array], blank: Any) -> Array:
        values = np.concatenate(parts)
        rows = np.full((len(final), *values.shape[1:]), blank, values.dtype)
        rows[~final] = values
        return rows

    terminated, truncated = np.zeros(len(final), bool), np.zeros(len(final), bool)
    terminated[last - 1] = [each.trajectory.terminated for each in episodes]
    truncated[last - 1] = [each.truncated for each in episodes]
    rewards = [np.asarray(each.trajectory.rewards, np.float64) for each in episodes]
    columns: dict[str, Any] = {
        "episode": np.repeat(first + np.arange(len(episodes)), sizes),
        "step": np.concatenate(
            [each.trajectory.start + np.arange(n + 1) for each, n in zip(episodes, lengths, strict=True)]
        ),
        "final": final,
        "observation": np.concatenate([each.trajectory.observations for each in episodes]),
        "action": of_steps([each.trajectory.actions for each in episodes], 0),
        "reward": of_steps(rewards, np.nan),
        "normalised_reward": of_steps([normalise(each) for each in rewards], np.nan),
        "terminated": terminated,
        "truncated": truncated,
        "policy": pa.DictionaryArray.from_arrays(pa.array(which), pa.array(names, pa.string())),
        "level_seed": np.repeat(np.array([each.level_seed for each in episodes], np.int64), sizes),
    }
    for name in sorted({name for each in episodes for name in each.states}):
        some = next(each.states[name] for each in episodes if name in each.states)
        parts = [
            each.states[name] if name in each.states else _blank(len(each.trajectory) + 1, some.dtype, some.shape[1:])
            for each in episodes
        ]
        columns[STATE + name] = np.concatenate(parts)
    return columns


def _blank(count: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Return values for what is unknown: NaN, or 0 if ``dtype`` has no NaN."""
    return np.full((count, *shape), np.nan if dtype.kind == "f" else 0, dtype)


def load_transitions(path: Path | str, most: int | None = None) -> Transitions:
    """Load steps from a recording, an ``.npz`` of demonstrations, or trajectories saved by imitation. Runs no code from them.

    Args:
        path: a recording's folder; an ``.npz`` from `Demonstrations.save`; imitation's legacy ``.npz``, or its folder (Hugging Face
            datasets). For a run folder, use `rlhf_ray.runs.steps.load_steps`.
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
    if path.is_file() and imitation_files.is_legacy(path):
        trajectories, timeouts = imitation_files.read_npz(path), None
    else:
        found = Demonstrations.load(path)
        trajectories, timeouts = found.trajectories(), found.timeouts
    steps = Transitions.of_trajectories(trajectories)
    last = np.cumsum([len(each) for each in trajectories]) - 1
    truncated = np.zeros(len(steps), bool)
    truncated[last] = ~steps.terminated[last]
    if timeouts is not None and len(timeouts) == len(steps):
        truncated = timeouts.astype(bool)
    return steps.with_(columns={"truncated": truncated})[: len(steps) if most is None else most]
