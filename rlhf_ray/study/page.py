"""Writes a study's page, HTML without scripts or other files, and its twin in JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from rlhf_ray import pages
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.metrics import plain
from rlhf_ray.study import kept
from rlhf_ray.study.section import Check, Effect, Effects, Picture, Section, Table, figure

LONG = 40
"""Rows of a table above which the page folds it."""
FORMAT = "rlhf_ray.report/3"
"""Name and version of the JSON twin."""
ROWS = 8
"""Rows that the first screen shows; the table below has all."""
WIDTH, NAME, HEIGHT, GAP = 760, 250, 13, 11
"""Pixels of the picture, of the names, of a bar, and between rows."""
LETTERS = 33
"""Letters of a name that fit beside the bars."""
TEMPLATE = Path(__file__).parent / "report.html"


@dataclass(frozen=True)
class Screen:
    """What a page shows first."""

    kind: str  # kind of the report, for example "run report"
    heading: str  # what it is about
    under: str = ""  # a line below the heading
    checks: Sequence[Check] = ()  # figures with their bounds, which decide `answer`
    effects: Sequence[Effects] = ()  # tables of effects, whose first rows are drawn
    tables: Sequence[Table] = ()  # further tables
    pictures: Sequence[Picture] = ()  # pictures

    @property
    def answer(self) -> str:
        """Whether to use it: every check passes; else what to look at, or not to use it."""
        failed = [check.name for check in self.checks if check.passed is False]
        open_ = [check.name for check in self.checks if check.passed is None]
        if failed:
            return f"Don't use it as it is: {'; '.join(failed)}"
        return f"Look at {'; '.join(open_)}" if open_ else "Use it"

    @property
    def text(self) -> str:
        """The screen as plain text, for terminals."""
        lines = [self.heading]
        if self.checks:
            lines.append(self.answer)
        lines += [check.text for check in self.checks]
        for effects in self.effects:
            lines.append(effects.title)
            for row in effects.rows[:ROWS]:
                found = [f"{column} {text}" for column in effects.columns if (text := row.text(column))]
                lines.append(f"  {row.name}: {', '.join(found) or '–'}")
        return "\n".join(lines)


def screen_of(kind: str, heading: str, under: str, sections: Sequence[Section], pictures: Sequence[str] = ()) -> Screen:
    """Make the first screen of sections: the first one's checks, the first two tables of effects, and two pictures.

    ``pictures`` are the names of those to show, the first two that there are.
    """
    ran = [section for section in sections if section.skipped is None]
    found = [item for name in pictures for section in ran for item in section.pictures if item.name == name]
    effects = [effects for section in ran for effects in section.effects if effects.rows]
    return Screen(kind, heading, under, ran[0].checks if ran else (), effects[:2], (), found[:2])


def write_page(folder: Path, about: dict[str, Any], sections: Sequence[Section], screen: Screen) -> Path:
    """Write the page with its sections and facts ``about`` the study, and its twin, to ``folder``; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    twin = {
        "format": FORMAT,
        "kind": screen.kind,
        "about": about,
        "answer": screen.answer if screen.checks else None,
        "sections": [kept.to_json(section) for section in sections],
    }
    write_text(folder / "report.json", json.dumps(plain(twin), indent=1) + "\n")
    page = folder / "report.html"
    write_text(page, render(about, sections, screen))
    return page


def render(about: dict[str, Any], sections: Sequence[Section], screen: Screen) -> str:
    """Render the page. A section leaves out the checks, tables and pictures of the first screen, which would be there twice."""
    filters: dict[str, Callable[..., Any]] = {
        "figure": figure,
        "code": code,
        "data_uri": data_uri,
        "bars": bars,
        "tabled": tabled,
        "numeric": numeric,
    }
    return pages.render(
        TEMPLATE,
        filters,
        about={name.replace("_", " "): figure(value) for name, value in about.items() if value is not None},
        screen=screen,
        long=LONG,
        sections=[left for section in sections if (left := _besides(section, screen)) is not None],
        skipped=[section for section in sections if section.skipped is not None],
    )


def _besides(section: Section, screen: Screen) -> Section | None:
    """Return what a section shows besides the first screen; None if nothing."""
    checks = [check for check in section.checks if check not in screen.checks]
    tables = [table for table in section.tables if table not in screen.tables]
    pictures = [picture for picture in section.pictures if picture not in screen.pictures]
    if section.skipped is not None or not (checks or tables or pictures or section.effects or section.notes):
        return None
    return replace(section, checks=checks, tables=tables, pictures=pictures)


def tabled(effects: Effects) -> Table:
    """Return a table of effects as a table of texts: parts are below their row, and indented."""

    def flat(rows: Sequence[Effect], depth: int = 0) -> Iterator[list[Any]]:
        for row in rows:
            yield ["\N{EM SPACE}" * depth + row.name, *map(row.text, effects.columns), row.control]
            yield from flat(row.parts, depth + 1)

    return Table(["", *effects.columns, "control"], list(flat(effects.rows)), effects.title)


def numeric(table: Table) -> set[int]:
    """Return the numbers of the columns that hold figures, which are aligned on the right; never the first one."""

    def is_figure(value: Any) -> bool:
        return not isinstance(value, str) or re.match(r"[-−+]?[\d.]|[–—]?$", value) is not None

    columns = range(1, len(table.columns))
    return {column for column in columns if all(is_figure(row[column]) for row in table.rows)}


def code(text: str) -> Markup:
    """Escape a text, and show what is in backticks as code."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(marked)  # what was the text's own is escaped


def data_uri(picture: Picture) -> str:
    """Embed a picture."""
    kind = {"svg": "svg+xml"}.get(picture.kind, picture.kind)
    return f"data:image/{kind};base64,{base64.b64encode(picture.image).decode()}"


def bars(effects: Effects, rows: int = ROWS) -> Markup:
    """Draw the first rows of ``effects``: a bar for each column with its interval, and a tick at the control."""
    shown = effects.rows[:rows]
    columns = [column for column in effects.columns if any(column in row.figures for row in shown)]
    ends = [end for row in shown for column in columns for end in _ends(row, column)]
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    scale = (WIDTH - NAME - 10) / (high - low or 1.0)

    def x(value: float) -> float:
        return NAME + (min(max(value, low), high) - low) * scale

    block, step = HEIGHT * len(columns), HEIGHT * len(columns) + GAP
    parts = [f'<path class="zero" d="M{x(0.0):.1f} 0V{step * len(shown)}"/>']
    for at, row in enumerate(shown):
        name = row.name if len(row.name) <= LETTERS else f"{row.name[: LETTERS - 1]}…"
        label = f"{escape(name)}<title>{escape(row.name)}</title>"
        parts.append(f'<text x="{NAME - 8}" y="{at * step + block / 2 + 4:.1f}" text-anchor="end">{label}</text>')
        for below, column in enumerate(columns):
            if (figure := row.figures.get(column)) is None or not math.isfinite(figure.mean):
                continue
            y = at * step + below * HEIGHT
            left, right = sorted((x(0.0), x(figure.mean)))
            size = f'x="{left:.1f}" y="{y + 1}" width="{max(right - left, 1):.1f}" height="{HEIGHT - 3}"'
            title = f"<title>{escape(column)}: {row.text(column)}</title>"
            parts.append(f'<rect class="c{effects.columns.index(column)}" {size}>{title}</rect>')
            if figure.low is not None and figure.high is not None:
                parts.append(f'<path d="M{x(figure.low):.1f} {y + HEIGHT / 2 - 0.5:.1f}H{x(figure.high):.1f}"/>')
        if row.control is not None and math.isfinite(row.control):
            parts.append(f'<path class="control" d="M{x(row.control):.1f} {at * step}v{block}"/>')
    legend = " ".join(
        f'<span class="swatch c{effects.columns.index(column)}"></span>{escape(column)}' for column in columns
    )
    if any(row.control is not None for row in shown):
        legend += ' <span class="swatch tick"></span>control'
    about = escape(f"{effects.title}: {', '.join(row.name for row in shown)}")
    size = f"0 0 {WIDTH} {step * len(shown)}"
    svg = f'<svg class="bars" role="img" aria-label="{about}" viewBox="{size}">{"".join(parts)}</svg>'
    return Markup(f'<p class="legend">{legend}</p><div class="scroll" tabindex="0">{svg}</div>')


def _ends(row: Effect, column: str) -> list[float]:
    """Return all finite numbers of a row that are drawn."""
    if (figure := row.figures.get(column)) is None:
        return []
    found = [figure.mean, figure.low, figure.high, row.control]
    return [value for value in found if value is not None and math.isfinite(value)]
