"""Recorded episodes from one format to another: ours, imitation's and Minari's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from rlhf_ray.data import imitation_files, minari_files
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.demonstrations import Demonstrations, spaces_of_file
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recorded_episode import RecordedEpisode
from rlhf_ray.data.recording_writer import RecordingWriter, episodes_of
from rlhf_ray.data.recordings import MANIFEST, Recording, load_transitions

Format = Literal["recording", "demonstrations", "imitation", "minari"]


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
    """Open recorded episodes in any format that `load_transitions` reads.

    Raises:
        SettingError: ``path`` holds none.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        recording = Recording(path)
        return EpisodeSource(recording, recording.observation_space, recording.action_space, recording.about)
    if minari_files.is_minari(path):
        minari = minari_files.MinariFolder(path)
        about: dict[str, Any] = {} if minari.environment is None else {"environment": minari.environment}
        return EpisodeSource(minari, minari.observation_space, minari.action_space, about)
    episodes = list(episodes_of(load_transitions(path)))
    if path.is_dir():
        infos = imitation_files.read_infos(path)
        episodes = [replace(episode, infos=texts) for episode, texts in zip(episodes, infos, strict=True)]
    return EpisodeSource(episodes, *(spaces_of_file(path) if path.is_file() else (None, None)), {})


def write_episodes(source: EpisodeSource, out: Path | str, to: Format) -> None:
    """Write episodes.

    Args:
        source: the episodes. A recording and a Minari data set need their spaces.
        out: the new folder; or a new ``.npz`` file, for demonstrations and imitation's legacy layout.
        to: recording; demonstrations, ours, an ``.npz``; imitation, a folder or, if ``out`` ends in ``.npz``, a legacy file; or
            minari.

    Raises:
        SettingError: ``out`` exists or has a suffix of another format, or the spaces are unknown.
    """
    out = Path(out)
    if out.exists():
        raise SettingError(f"out is {out}, which exists; give another path.")
    if (out.suffix == ".npz") != (to == "demonstrations") and to != "imitation":
        raise SettingError(
            f"out is {out}, but {to} is {'an .npz file' if to == 'demonstrations' else 'a folder'}: give another path."
        )
    if to == "demonstrations":
        known = [space for space in (source.observation_space, source.action_space) if space is not None]
        Demonstrations.of([each.trajectory for each in source.episodes]).save(out, known)
    elif to == "imitation":
        episodes = list(source.episodes)
        trajectories = [each.trajectory for each in episodes]
        if out.suffix == ".npz":
            imitation_files.write_npz(trajectories, out)
        else:
            imitation_files.write_folder(trajectories, out, [each.infos for each in episodes])
    else:
        spaces = source.observation_space, source.action_space
        if spaces[0] is None or spaces[1] is None:
            raise SettingError(f"The spaces of the episodes are unknown; {to} needs them: give the environment.")
        if to == "minari":
            minari_files.write_minari(source.episodes, out, spaces[0], spaces[1], source.about.get("environment"))
            return
        with whole_folder(out) as new:
            writer = RecordingWriter(new, spaces[0], spaces[1], source.about)
            for episode in source.episodes:
                writer.add(episode)
            writer.finish()
