"""The pages for those who come from imitation and drlhp, row by row. Not a test itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_ray.settings import Experiment

DOCS = Path(__file__).parents[2] / "docs"
IMITATION, DRLHP = PAGES = ("from_imitation.md", "from_drlhp.md")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: the names in its first cell, the other cells, and the heading that it is under."""

    page: str
    heading: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {', '.join(self.theirs)}"


def spans(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows(page: str) -> Iterator[Row]:
    heading, width = "", 0
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] in ("imitation", "drlhp"):
            width = len(cells)
        elif cells and set(line) - set("|- "):
            assert len(cells) == width, line
            yield Row(page, heading, spans(cells[0]), tuple(cells[1:]))


ROWS = [row for page in PAGES for row in rows(page)]


def row_of(page: str, under: str, theirs: str) -> Row:
    """The row of ``theirs`` under the heading that has ``under``."""
    (row,) = [row for row in ROWS if row.page == page and under in row.heading and theirs in row.theirs]
    return row


def named(page: str, under: str, theirs: str) -> tuple[str, ...]:
    """Our names in the row of ``theirs`` under the heading that has ``under``."""
    return spans(row_of(page, under, theirs).ours[0])


def note(page: str, under: str, theirs: str) -> tuple[str, ...]:
    """Names in the row's remark."""
    return spans(row_of(page, under, theirs).ours[-1])


def given(name: str, value: Any, **others: Any) -> Any:
    """The settings with the setting ``name``, such as ``reward_model.window``, at ``value``; the name may have its own."""
    name, _, own = name.partition("=")
    group, _, field = name.partition(".")
    return type(getattr(Experiment(), group))(**{field: own or value}, **others)
