"""The annotators' links to a labelling page: where they are stored and how they are printed."""

from __future__ import annotations

import time
from pathlib import Path

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job, run_path
from rlhf_ray.labelling.sessions import LASTS_S, Sessions

FILE = "labelling.json"


def find(folder: Path) -> Path:
    """The file with the annotators' links for the run or store in ``folder``.

    Raises:
        SettingError: there is no such file.
    """
    path = run_path(folder)
    files = [path, path / FILE, path.with_name(f"{path.name}.{FILE}")]
    first = next((file for file in files if file.is_file()), None)
    if first is None:
        raise SettingError(
            f"No links found in or beside {path} ({FILE}): give the folder of a run with --teacher human or a store that "
            "`rlhf-ray label` writes to, on the machine where it runs."
        )
    return first


def table(sessions: Sessions) -> list[str]:
    """One line per annotator."""
    lines = []
    for name, person in sessions.people.items():
        if not person.until:
            lines.append(f"{name}: revoked; --renew {name} makes a new link")
        elif person.until < time.time():
            lines.append(f"{name}: expired (older than {LASTS_S / 86400:.0f} days); --renew {name} makes a new link")
        else:
            day = time.strftime("%Y-%m-%d", time.localtime(person.until))
            lines.append(
                f"label as {name}, until {day}: {sessions.link(name, sessions.url or 'http://127.0.0.1:8765')}"
            )
    return lines


def invitation(links: dict[str, str], folder: Path | str) -> list[str]:
    """The lines a run prints once its page is up: one link per annotator, or in a cluster job one line without tokens.

    Args:
        links: the links by annotator.
        folder: the folder to give to `rlhf-ray links`.
    """
    if not in_job():
        return [f"label as {name}: {link}" for name, link in links.items()]
    # Ray stores a job's output and shows it to everyone who has the cluster's token.
    return [
        f"label at {page}; for the links, run `rlhf-ray links {folder}` on this node"
        for page in sorted({link.partition("#")[0] for link in links.values()})
    ]
