"""`rlhf-ray links`: everybody's link to a labelling page, new ones, and shutting somebody out, also while the page is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job
from rlhf_ray.labelling.links import find, table
from rlhf_ray.labelling.sessions import Sessions


@dataclass(frozen=True)
class Links:
    """Show everybody's link to a labelling page. Whoever has a link labels in that person's name."""

    folder: tyro.conf.Positional[Path]
    """The run's folder, the preference store's, or the file with the links."""
    revoke: tuple[str, ...] = ()
    """Shut these people out at once: their links and sessions end. Their answers stay."""
    renew: tuple[str, ...] = ()
    """Give these people new links: the old ones and their sessions end."""


def run(words: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SettingError: there are no links, or nobody of that name.
    """
    command = parse_arguments(Links, "rlhf-ray links", words)
    if in_job():
        raise SettingError(
            "links would be in the job's output, which everyone with the cluster's token reads: run it on the node that has the "
            "folder (docs/labelling.md)."
        )
    file = find(command.folder)
    sessions = Sessions.load(file)
    for name in (*command.revoke, *command.renew):
        if name not in sessions.people:
            raise SettingError(f"Nobody is called {name!r} in {file}; there are {', '.join(sessions.people)}.")
    for name in command.revoke:
        sessions.revoke(name)
    for name in command.renew:
        sessions.renew(name)
    if command.revoke or command.renew:
        sessions.save(file)
    print("\n".join(table(sessions)))
