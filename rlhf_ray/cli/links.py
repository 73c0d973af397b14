"""`rlhf-ray links`: show, renew and revoke the annotators' links to a labelling page, also while the page is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job
from rlhf_ray.labelling.sessions import Sessions, find, table


@dataclass(frozen=True)
class Links:
    """Show the annotators' links to a labelling page. Anyone who has a link labels in that annotator's name."""

    folder: tyro.conf.Positional[Path]
    """The run folder, the preference store, or the file with the links."""
    revoke: tuple[str, ...] = ()
    """Revoke the links and sessions of these annotators at once. Their answers stay."""
    renew: tuple[str, ...] = ()
    """Give these annotators new links; the old links and sessions end."""


def run(words: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SettingError: there are no links, or no annotator of that name.
    """
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
