"""Finished steps on disk: which are still valid, and their sections as JSON, PNG, SVG and WebP.

::

    NAME/                         the artefacts of a step
    NAME/step.json                what it was made from, and a hash of each of its files
    NAME/report/section.json      what the page says of it, with its pictures beside it
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.strays import without_strays
from rlhf_ray.study.figures import figures_from
from rlhf_ray.study.section import Picture, Section

SECTION = "report"
"""Folder with a step's section, inside the step's folder."""
MADE = "step.json"

F = TypeVar("F")


def save(section: Section, folder: Path, key: str, identity: str) -> None:
    """Write a finished step's section beside its artefacts, and what identifies them."""
    report = folder / SECTION
    report.mkdir()
    for picture in section.pictures:
        (report / f"{picture.name}.{picture.kind}").write_bytes(picture.image)
    (report / "section.json").write_text(json.dumps(to_json(section), indent=1) + "\n")
    made = {"key": key, "made": identity, "files": _contents(folder)}
    write_text(folder / MADE, json.dumps(made, indent=1) + "\n")


def load(folder: Path, key: str) -> tuple[Section, str] | None:
    """Return a finished step's section and its artefacts' identity; None if there is none of this key, or its files changed."""
    try:
        made = json.loads((folder / MADE).read_text())
        if made["key"] != key or _contents(folder) != made["files"]:
            return None
        report = folder / SECTION
        values = json.loads((report / "section.json").read_text())
        files = [report / f"{picture['name']}.{picture.pop('kind')}" for picture in values["pictures"]]
        pictures = [Picture(image=file.read_bytes(), **of) for file, of in zip(files, values["pictures"], strict=True)]
        return _from_json(values, pictures), str(made["made"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_figures(folder: Path, kind: type[F]) -> F | None:
    """Return a finished step's figures, of class ``kind``; None if it was skipped or never ran."""
    try:
        values = json.loads((folder / SECTION / "section.json").read_text())["values"]
    except FileNotFoundError:
        return None
    return figures_from(kind, values) if values else None


def to_json(section: Section) -> dict[str, Any]:
    """Return the section as JSON values; pictures are named, not included."""
    values = {name: value for name, value in dataclasses.asdict(section).items() if name != "pictures"}
    pictures = [
        {"name": item.name, "caption": item.caption, "crossed_out": item.crossed_out, "kind": item.kind}
        for item in section.pictures
    ]
    return dict(plain({**values, "pictures": pictures}))


def as_saved(section: Section) -> Section:
    """Return the section as `load` would: with Python's own numbers."""
    return _from_json(to_json(section), section.pictures)


def _from_json(values: dict[str, Any], pictures: Sequence[Picture]) -> Section:
    own = {name: value for name, value in values.items() if name not in ("pictures", "values")}
    return dataclasses.replace(figures_from(Section, own), pictures=pictures, values=values["values"])


def _contents(folder: Path) -> dict[str, str]:
    """Return a hash of each file of a step, by its path."""
    hashes = {}
    for path in without_strays(folder.rglob("*")):
        if path.is_file() and path != folder / MADE:
            with path.open("rb") as file:
                hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    return hashes
