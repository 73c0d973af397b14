"""Everybody's links to a labelling page: where they are kept, and what is said of them."""

from __future__ import annotations

import time
from pathlib import Path

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job, run_path
from rlhf_ray.labelling.sessions import LASTS_S, Sessions

FILE = "labelling.json"


def find(folder: Path) -> Path:
    """The file with the links of the run or store in ``folder``.

    Raises:
        SettingError: there is none.
    """
    path = run_path(folder)
    files = [path, path / FILE, path.with_name(f"{path.name}.{FILE}")]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise SettingError(
            f"There are no links in or beside {path} ({FILE}): name the folder of a run with --teacher human, or the store that "
            "`rlhf-ray label` writes to, on the machine where it runs."
        )
    return found


def table(sessions: Sessions) -> list[str]:
    """A line for each person."""
    lines = []
    for name, person in sessions.people.items():
        if not person.until:
            lines.append(f"{name}: shut out; --renew {name} makes a new link")
        elif person.until < time.time():
            lines.append(f"{name}: the link is older than {LASTS_S / 86400:.0f} days; --renew {name} makes a new one")
        else:
            day = time.strftime("%Y-%m-%d", time.localtime(person.until))
            lines.append(
                f"label as {name}, until {day}: {sessions.link(name, sessions.url or 'http://127.0.0.1:8765')}"
            )
    return lines


def invitation(links: dict[str, str], folder: Path | str) -> list[str]:
    """What a run or a labelling page prints when people can come: a line for each person, or in a job one that shows no token.

    Args:
        links: each person's.
        folder: what `run` finds them by.
    """
    if not in_job():
        return [f"label as {name}: {link}" for name, link in links.items()]
    # A job's output is kept by Ray and shown to everyone with the cluster's token.
    return [
        f"label at {page}; everybody's link: `rlhf-ray links {folder}` on this node"
        for page in sorted({link.partition("#")[0] for link in links.values()})
    ]
