"""`rlhf-ray links` and `rlhf-ray pause`: what annotators get of a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job
from rlhf_ray.labelling.sessions import Sessions, find, table
from rlhf_ray.runs.folder import RunFolder


@dataclass(frozen=True)
class Links:
    """Show the annotators' links to a labelling page. Anyone who has a link labels in that annotator's name."""

    folder: tyro.conf.Positional[Path]
    """The run folder, the preference store, or the file with the links."""
    revoke: tuple[str, ...] = ()
    """Revoke the links and sessions of these annotators at once. Their answers stay."""
    renew: tuple[str, ...] = ()
    """Give these annotators new links; the old links and sessions end."""


def links(words: Sequence[str]) -> None:
    """Run `rlhf-ray links`."""
    command = parse_arguments(Links, "rlhf-ray links", words)
    if in_job():
        raise SettingError(
            "everyone with the cluster's token can read a job's output, so it must not show links: run `rlhf-ray links` on the "
            "node that has the folder (docs/labelling.md)."
        )
    file = find(command.folder)
    sessions = Sessions.load(file)
    for name in (*command.revoke, *command.renew):
        if name not in sessions.people:
            raise SettingError(f"{file} has no annotator {name!r}; it has {', '.join(sessions.people)}.")
    for name in command.revoke:
        sessions.revoke(name)
    for name in command.renew:
        sessions.renew(name)
    if command.revoke or command.renew:
        sessions.save(file)
    print("\n".join(table(sessions)))


@dataclass(frozen=True)
class Pause:
    """Pause collecting alone: from the next iteration on, a run asks no questions and takes no steps for clips of its own.

    Training continues with the answers so far. The labels that fall due meanwhile are asked for after the pause, about the
    agent's newest behaviour; those of a pause that lasts to the end are not asked for. The first labels are always collected.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    end: bool = False
    """End the pause."""


def pause(words: Sequence[str]) -> None:
    """Run `rlhf-ray pause`."""
    command: Pause = parse_arguments(Pause, "rlhf-ray pause", words)
    folder = RunFolder.open(command.run)
    if command.end:
        folder.paused.unlink(missing_ok=True)
        print(f"{folder.path}: collects comparisons again, from the next iteration on")
        return
    folder.paused.touch()
    print(
        f"{folder.path}: collects no comparisons from the next iteration on; end this with "
        f"`rlhf-ray pause {folder.path} --end`"
    )
