"""`rlhf-ray convert`: recorded episodes from one format to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import spaces_of
from rlhf_ray.data.inputs import check_recorded
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.recording_writer import Format, write_episodes
from rlhf_ray.data.recordings import EpisodeSource, open_episodes, recorded_in
from rlhf_ray.data.spaces import shaped
from rlhf_ray.data.transitions import RecordedEpisode


@dataclass(frozen=True)
class Convert:
    """Convert recorded episodes: ours, those of imitation, and Minari data sets. Runs no code from them."""

    source: tyro.conf.Positional[Path]
    """A recording; an .npz from `rlhf-ray record`; a folder of trajectories saved by imitation; or a Minari data set."""
    out: tyro.conf.Positional[Path]
    """The new folder, or .npz file."""
    to: Format = "recording"
    """recording: what every command reads. demonstrations: an .npz of plain arrays. imitation: a folder that
    imitation.data.serialize.load opens. minari: a Minari data set."""
    environment: str | None = None
    """Environment of the episodes. Needed if the source doesn't say its spaces, for a recording and for Minari."""


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Convert, "rlhf-ray convert", words)
    with Lock(command.out):
        source = open_episodes(command.source)
        if command.environment is not None:
            source = _in(command.environment, source, command.source)
        write_episodes(source, command.out, command.to)
        print(f"{command.out}: {sum(1 for _ in source.episodes)} episodes of {command.source}")


def _in(environment: str, source: EpisodeSource, where: Path) -> EpisodeSource:
    """Give the episodes the spaces of an environment, which they have to fit."""
    spaces, episodes = spaces_of(environment), list[RecordedEpisode]()
    own = recorded_in(where, spaces[0])
    for episode in source.episodes:
        of = replace(episode.trajectory, actions=shaped(episode.trajectory.actions, spaces[1]))
        episodes.append(replace(episode, trajectory=of))
        check_recorded(of.observations, of.actions, spaces, f"The episodes in {where}", own=own)
    about = {**source.about, "environment": environment}
    return replace(source, episodes=episodes, observation_space=spaces[0], action_space=spaces[1], about=about)
