"""Finished sections on disk: JSON and PNG."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.plain import plain
from rlhf_ray.interpret.section import Check, Picture, Section, Statement, Table


def values(section: Section) -> dict[str, Any]:
    """Return the section as JSON values; pictures are named, not included."""
    pictures = [{"name": p.name, "caption": p.caption, "crossed_out": p.crossed_out} for p in section.pictures]
    own = {"name": section.name, "title": section.title, "skipped": section.skipped, "values": section.values}
    parts = {
        of: [dataclasses.asdict(each) for each in getattr(section, of)] for of in ("statements", "checks", "tables")
    }
    return dict(plain({**own, **parts, "pictures": pictures}))


def as_saved(section: Section) -> Section:
    """Return the section as `load` would: with Python's own numbers."""
    return _section(values(section), section.pictures)


def save(section: Section, folder: Path, fingerprint: str) -> None:
    """Write ``section`` to ``folder``, replacing an earlier one."""
    with whole_folder(folder) as new:
        for picture in section.pictures:
            (new / f"{picture.name}.png").write_bytes(picture.image)
        text = json.dumps({"fingerprint": fingerprint, **values(section)}, indent=1)
        (new / "section.json").write_text(text + "\n")


def load(folder: Path, fingerprint: str) -> Section | None:
    """Load a section that was saved for the same subject; None if there is none, or it can't be read."""
    try:
        found = json.loads((folder / "section.json").read_text())
        if found["fingerprint"] != fingerprint:
            return None
        pictures = [
            Picture(each["name"], (folder / f"{each['name']}.png").read_bytes(), each["caption"], each["crossed_out"])
            for each in found["pictures"]
        ]
        return _section(found, pictures)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _section(values: dict[str, Any], pictures: Sequence[Picture]) -> Section:
    return Section(
        values["name"],
        values["title"],
        [Statement(**each) for each in values["statements"]],
        [Check(**each) for each in values["checks"]],
        [Table(**each) for each in values["tables"]],
        pictures,
        values["values"],
        values["skipped"],
    )
