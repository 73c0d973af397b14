"""Recorded episodes from one format to another: ours, imitation's and Minari's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rlhf_ray.data import imitation_files, minari_files
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import EpisodeSource

Format = Literal["recording", "demonstrations", "imitation", "minari"]


def write_episodes(source: EpisodeSource, out: Path | str, to: Format) -> None:
    """Write episodes.

    Args:
        source: the episodes (`rlhf_ray.data.recordings.open_episodes`). A recording and a Minari data set need their spaces.
        out: the new folder; or the new ``.npz`` file, for demonstrations.
        to: recording; demonstrations, an ``.npz``; imitation; or minari.

    Raises:
        SettingError: ``out`` exists or has a suffix of another format, or the spaces are unknown.
    """
    out, spaces = Path(out), (source.observation_space, source.action_space)
    if out.exists():
        raise SettingError(f"out is {out}, which exists; give another path.")
    if (out.suffix == ".npz") != (to == "demonstrations"):
        raise SettingError(
            f"out is {out}, but {to} is {'an .npz file' if to == 'demonstrations' else 'a folder'}: give another path."
        )
    if to == "demonstrations":
        trajectories = [episode.trajectory for episode in source.episodes]
        Demonstrations.of(trajectories).save(out, [space for space in spaces if space is not None])
    elif to == "imitation":
        imitation_files.write_folder((episode.trajectory for episode in source.episodes), out)
    elif spaces[0] is None or spaces[1] is None:
        raise SettingError(f"The spaces of the episodes are unknown; {to} needs them: give the environment.")
    elif to == "minari":
        minari_files.write_minari(source.episodes, out, spaces[0], spaces[1], source.about.get("environment"))
    else:
        with whole_folder(out) as new:
            writer = RecordingWriter(new, spaces[0], spaces[1], source.about)
            for episode in source.episodes:
                writer.add(episode)
            writer.finish()
