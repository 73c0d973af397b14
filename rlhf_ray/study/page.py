"""Writes a study's page, HTML without scripts or other files, and its twin in JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from rlhf_ray import pages
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.plain import plain
from rlhf_ray.study import kept
from rlhf_ray.study.bars import ROWS, bars, flat
from rlhf_ray.study.section import Check, Effects, Picture, Section, Table

LONG = 40
"""Rows of a table above which the page folds it."""
FORMAT = "rlhf_ray.report/3"
"""Name and version of the JSON twin."""
TEMPLATE = Path(__file__).parent / "report.html"


@dataclass(frozen=True)
class Screen:
    """What a page shows first.

    Attributes:
        kind: kind of the report, for example "run report".
        heading: what it is about.
        under: a line below the heading.
        checks: figures with their bounds, which decide `answer`.
        effects: tables of effects, whose first rows are drawn.
        tables: further tables.
        pictures: pictures.
    """

    kind: str
    heading: str
    under: str = ""
    checks: Sequence[Check] = ()
    effects: Sequence[Effects] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()

    @property
    def answer(self) -> str:
        """Whether to use it: every check passes; else what to look at, or not to use it."""
        failed = [check.name for check in self.checks if check.passed is False]
        open_ = [check.name for check in self.checks if check.passed is None]
        if failed:
            return f"Don't use it as it is: {', '.join(failed)}"
        return f"Look at {', '.join(open_)}" if open_ else "Use it"

    @property
    def text(self) -> str:
        """The screen as plain text, for terminals."""
        lines = [self.heading]
        if self.checks:
            lines.append(self.answer)
        for check in self.checks:
            interval = "" if check.low is None else f" [{figure(check.low)}, {figure(check.high)}]"
            lines.append(f"{check.name}: {figure(check.value)}{interval} ({check.bound})")
        for effects in self.effects:
            lines.append(effects.title)
            for row in effects.rows[:ROWS]:
                found = [
                    f"{column} {row.figures[column].text()}" for column in effects.columns if column in row.figures
                ]
                lines.append(f"  {row.name}: {', '.join(found)}")
        return "\n".join(lines)


def screen_of(kind: str, heading: str, under: str, sections: Sequence[Section], pictures: Sequence[str] = ()) -> Screen:
    """Make the first screen of sections: the first one's checks, all tables of effects, and the first picture that there is.

    Args:
        kind: see `Screen`.
        heading: see `Screen`.
        under: see `Screen`.
        sections: the sections, in the order of the page.
        pictures: names of the pictures to show, of which the first two are; names that none has are left out.
    """
    ran = [section for section in sections if section.skipped is None]
    found = [item for name in pictures for section in ran for item in section.pictures if item.name == name]
    effects = [effects for section in ran for effects in section.effects if effects.rows]
    return Screen(kind, heading, under, ran[0].checks if ran else (), effects[:2], (), found[:2])


def write_page(
    folder: Path, about: dict[str, Any], sections: Sequence[Section], screen: Screen, name: str = "report"
) -> Path:
    """Write the page and its twin to ``folder``; return the page's path.

    Args:
        folder: the study's folder.
        about: facts about the study.
        sections: the sections, in the order of the page.
        screen: what it shows first.
        name: of both files, without ending.
    """
    folder.mkdir(parents=True, exist_ok=True)
    twin = {
        "format": FORMAT,
        "kind": screen.kind,
        "about": about,
        "answer": screen.answer if screen.checks else None,
        "sections": [kept.to_json(section) for section in sections],
    }
    write_text(folder / f"{name}.json", json.dumps(plain(twin), indent=1) + "\n")
    page = folder / f"{name}.html"
    write_text(page, render(about, sections, screen))
    return page


def render(about: dict[str, Any], sections: Sequence[Section], screen: Screen) -> str:
    """Render the page."""
    return pages.render(
        TEMPLATE,
        {"figure": figure, "code": code, "data_uri": data_uri, "bars": bars, "tabled": tabled},
        about={name.replace("_", " "): figure(value) for name, value in about.items() if value is not None},
        screen=screen,
        long=LONG,
        sections=[section for section in sections if section.skipped is None],
        skipped=[section for section in sections if section.skipped is not None],
    )


def tabled(effects: Effects) -> Table:
    """Return a table of effects as a table of texts: parts are below their row, and indented."""
    rows = []
    for depth, row in flat(effects.rows):
        figures = [row.figures[column].text() if column in row.figures else None for column in effects.columns]
        rows.append(["\N{EM SPACE}" * depth + row.name, *figures, row.control])
    return Table(["", *effects.columns, "control"], rows, f"{effects.title}. {effects.caption}")


def figure(value: Any) -> str:
    """Format a value of a table: numbers with three significant digits, a dash for nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e5:
            digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
            return f"{value:.{min(digits, 4)}f}".replace("-", "−")
        return f"{value:.1e}".replace("-", "−")
    return str(value)


def code(text: str) -> Markup:
    """Escape a text, and show what is in backticks as code."""
    return Markup(
        re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    )  # joined as a Markup, the tags would be escaped


def data_uri(image: bytes) -> str:
    """Embed a PNG or a WebP."""
    kind = "webp" if image[8:12] == b"WEBP" else "png"
    return f"data:image/{kind};base64," + base64.b64encode(image).decode()
