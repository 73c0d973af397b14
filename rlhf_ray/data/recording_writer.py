"""Writes recordings (`rlhf_ray.data.recordings`), chunk by chunk, and recorded episodes in other formats."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data.atomic import left_over, whole_file, whole_folder, write_text
from rlhf_ray.data.columns import to_column
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.other_formats import write_imitation, write_minari
from rlhf_ray.data.recordings import FORMAT, FORMAT_INSIDE, MANIFEST, EpisodeSource, Recording, is_inside
from rlhf_ray.data.spaces import space_to_json
from rlhf_ray.data.strays import without_strays
from rlhf_ray.data.transitions import GAMMA, STATE, RecordedEpisode, RewardNormaliser, rows_of

Format = Literal["recording", "demonstrations", "imitation", "minari"]

CHUNK_BYTES = 16 * 2**20
CHUNK_STEPS = 4096
"""A chunk is written once its episodes have this many bytes of observations, or this many steps."""


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
            self._resume(Recording(self.path))
        elif self.path.exists() and not (
            self.path.is_dir() and all(left_over(entry.name) for entry in without_strays(self.path.iterdir()))
        ):
            raise SettingError(f"out is {path}, which exists and is not a recording; give another folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        for entry in self.path.iterdir():
            if left_over(entry.name):
                entry.unlink()
        self._write_manifest()

    def _resume(self, there: Recording) -> None:
        mine, theirs = self._manifest, json.loads((self.path / MANIFEST).read_text())
        for name in ("observation_space", "action_space"):
            if json.loads(json.dumps(mine[name])) != theirs[name]:
                raise SettingError(f"out is {self.path}, a recording with another {name}; give another folder.")
        for name in {**there.about, **mine["about"]}:
            before, now = there.about.get(name), mine["about"].get(name)
            if before != now:
                raise SettingError(
                    f"out is {self.path}, a recording with {name}={before!r}, not {now!r}; repeat its command to continue it, or "
                    "give another folder."
                )
        self._manifest = theirs
        if there.chunks:
            self._normaliser = RewardNormaliser(**there.chunks[-1]["normaliser"])

    @property
    def complete(self) -> bool:
        """Whether the recording is finished."""
        return bool(self._manifest["complete"])

    def add(self, episode: RecordedEpisode) -> None:
        """Add the next episode. It is on disk once its chunk is full, or after `finish`."""
        self._waiting.append(episode)
        steps = sum(len(waiting.trajectory) for waiting in self._waiting)
        self._waiting_bytes += episode.trajectory.observations.nbytes
        self._waiting_bytes += sum(map(len, episode.env_states)) // 4  # compressed
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
        chunks, episodes, kinds = self._manifest["chunks"], self._waiting, self._manifest["columns"]
        first = sum(len(chunk["lengths"]) for chunk in chunks)
        file = self.path / f"chunk-{len(chunks):06d}.arrow"
        columns = rows_of(episodes, first, self._normaliser, self._manifest["about"].get("policies") or [])
        for name, values in columns.items():
            if name.startswith(STATE) or is_inside(name):
                kind = [str(values.dtype), list(values.shape[1:])]
                if kinds.setdefault(name, kind) != kind:
                    raise SettingError(
                        f"{name} was {kinds[name]} and is now {kind}; the environment's describe() must return arrays of one dtype "
                        "and shape."
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


def write_episodes(source: EpisodeSource, out: Path | str, to: Format) -> None:
    """Write episodes.

    Args:
        source: the episodes (`rlhf_ray.data.recordings.open_episodes`). A recording and a Minari data set need their spaces.
        out: the new folder; or the new ``.npz`` file, for demonstrations.
        to: the format.

    Raises:
        SettingError: ``out`` exists or has a suffix of another format, or the spaces are unknown.
    """
    out, seen, acts = Path(out), source.observation_space, source.action_space
    trajectories = (episode.trajectory for episode in source.episodes)
    if out.exists():
        raise SettingError(f"out is {out}, which exists; give another path.")
    if (out.suffix == ".npz") != (to == "demonstrations"):
        kind = "an .npz file" if to == "demonstrations" else "a folder"
        raise SettingError(f"out is {out}, but {to} is {kind}: give another path.")
    if to == "demonstrations":
        Demonstrations.of(list(trajectories)).save(out, [space for space in (seen, acts) if space is not None])
    elif to == "imitation":
        write_imitation(trajectories, out)
    elif seen is None or acts is None:
        raise SettingError(f"The spaces of the episodes are unknown; {to} needs them: give the environment.")
    elif to == "minari":
        write_minari(source.episodes, out, (seen, acts), source.about.get("environment"))
    else:
        with whole_folder(out) as new:
            writer = RecordingWriter(new, seen, acts, source.about)
            for episode in source.episodes:
                writer.add(episode)
            writer.finish()
