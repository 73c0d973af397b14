"""Draws a table of effects as bars with intervals: SVG inside the page, in its colours, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from rlhf_ray.study.section import Effect, Effects

ROWS = 8
"""Rows that the first screen shows; the table below has all."""
WIDTH, NAME, HEIGHT, GAP = 760, 250, 13, 11
"""Pixels of the picture, of the names, of a bar, and between rows."""
LETTERS = 33
"""Letters of a name that fit beside the bars."""


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


def flat(rows: Sequence[Effect], depth: int = 0) -> list[tuple[int, Effect]]:
    """Return rows and their parts below each other, each with its depth."""
    return [pair for row in rows for pair in ((depth, row), *flat(row.parts, depth + 1))]


def _ends(row: Effect, column: str) -> list[float]:
    """Return all finite numbers of a row that are drawn."""
    if (figure := row.figures.get(column)) is None:
        return []
    found = [figure.mean, figure.low, figure.high, row.control]
    return [value for value in found if value is not None and math.isfinite(value)]
