"""Draws a table of effects as bars with intervals: SVG inside the page, in its colours, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.section import Effect, Effects

ROWS = 8
"""Rows that the first screen shows; the table below has all."""
WIDTH, NAME, HEIGHT, GAP = 760, 250, 13, 11
"""Pixels of the picture, of the names, of a bar, and between rows."""


def bars(effects: Effects, rows: int = ROWS) -> Markup:
    """Draw the first rows of ``effects``: a bar for each column with its interval, and a tick at the control."""
    shown = effects.rows[:rows]
    columns = [column for column in effects.columns if any(column in row.figures for row in shown)]
    ends = [end for row in shown for column in columns for end in _ends(row, column)] or [0.0]
    low, high = min(0.0, *ends), max(0.0, *ends) or 1.0
    scale = (WIDTH - NAME - 10) / (high - low)

    def x(value: float) -> float:
        return NAME + (value - low) * scale

    parts, top = [], 0.0
    for row in shown:
        block = HEIGHT * len(columns)
        name = row.name if len(row.name) <= 38 else f"{row.name[:37]}…"
        parts.append(
            f'<text x="{NAME - 8}" y="{top + block / 2 + 4:.1f}" text-anchor="end">{escape(name)}'
            f"<title>{escape(row.name)}</title></text>"
        )
        for at, column in enumerate(columns):
            if (figure := row.figures.get(column)) is None or math.isnan(figure.mean):
                continue
            y = top + at * HEIGHT
            left, right = sorted((x(0.0), x(figure.mean)))
            kind = f"c{effects.columns.index(column)}"
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{y + 1:.1f}" width="{max(right - left, 1):.1f}" height="{HEIGHT - 3}">'
                f"<title>{escape(column)}: {figure.text()}</title></rect>"
            )
            if figure.low is not None and figure.high is not None:
                middle = y + HEIGHT / 2 - 0.5
                parts.append(f'<path d="M{x(figure.low):.1f} {middle:.1f}H{x(figure.high):.1f}"/>')
        if row.control is not None:
            parts.append(f'<path class="control" d="M{x(row.control):.1f} {top:.1f}V{top + block:.1f}"/>')
        top += block + GAP
    legend = " ".join(f'<span class="c{effects.columns.index(column)}">■</span> {escape(column)}' for column in columns)
    label = f"{effects.title}: {', '.join(row.name for row in shown)}"
    return Markup(
        f'<p class="legend">{legend}</p><svg class="bars" role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {top:.0f}">'
        f'<path class="zero" d="M{x(0.0):.1f} 0V{top:.0f}"/>{"".join(parts)}</svg>'
    )


def flat(rows: Sequence[Effect], depth: int = 0) -> list[tuple[int, Effect]]:
    """Return rows and their parts below each other, each with its depth."""
    return [pair for row in rows for pair in ((depth, row), *flat(row.parts, depth + 1))]


def _ends(row: Effect, column: str) -> list[float]:
    figure: MeanEstimate | None = row.figures.get(column)
    if figure is None:
        return []
    found = [figure.mean, figure.low, figure.high, row.control]
    return [value for value in found if value is not None and math.isfinite(value)]
