"""Curves and points on axes, as SVG: drawn in milliseconds, sharp at any size, and each number can be read from the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from markupsafe import escape
from numpy.typing import ArrayLike

from rlhf_ray.data.arrays import Array, FloatArray

BLUE, ORANGE = "#4477aa", "#ee7733"
COLOURS = (BLUE, "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")
"""Colours that colour-blind people tell apart (Paul Tol's bright)."""
INK, MUTED, GRID = "#1b1f24", "#59636e", "#e3e7eb"
DASHES = (("—", ""), ("– –", "7 3"), ("···", "2 3"))
"""How curves of equal colours differ: in the legend, and as SVG's dashes."""
STEPS = "environment steps"
MARKED, LISTED = 40, 3
"""Most points of a curve that has markers; most curves whose names are above them, not below the picture."""
LEFT, RIGHT, TOP, BOTTOM, LINE = 54, 18, 24, 40, 18
"""Pixels beside the axes, above them, below the last ones, and of a line of text."""


def svg(width: float, height: float, parts: Sequence[str]) -> bytes:
    """Return elements as an SVG picture of this size in pixels."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    style = f'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12" fill="{INK}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'.encode()


def text(x: float, y: float, words: str, anchor: Literal["start", "middle", "end"] = "start", colour: str = INK) -> str:
    """Return a line of text at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{plain(words)}</text>'


def plain(words: str) -> str:
    """Escape words for SVG, which may hold no control characters."""
    return str(escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)))


def stroke(
    x: Array, y: Array, colour: str, wide: float = 1.5, dashes: str = "", *, markers: float = 0.0, steps: bool = False
) -> str:
    """Return a line through points ``[n]`` in pixels, broken where one is not finite, with round ``markers`` of this radius.

    ``steps``: each value lasts until the next point.
    """
    if steps:
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    known, path, move = np.isfinite(x) & np.isfinite(y), [], "M"
    for right, down, there in zip(x.tolist(), y.tolist(), known.tolist(), strict=True):
        path += [f"{move}{right:.1f} {down:.1f}"] if there else []
        move = "L" if there else "M"
    how = f' stroke-dasharray="{dashes}"' if dashes else ""
    drawn = f'<path fill="none" stroke="{colour}" stroke-width="{wide:g}" stroke-linejoin="round"{how} d="{"".join(path)}"/>'
    places = zip(x[known].tolist(), y[known].tolist(), strict=True) if markers else ()
    return drawn + "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{markers:g}" fill="{colour}"/>' for a, b in places)


def ticks(low: float, high: float, most: int, whole: bool = False) -> tuple[FloatArray, list[str]]:
    """Return at most ``most`` round numbers from ``low`` to ``high``, and their texts; ``whole``: none between whole numbers."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= least * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    numbers = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    largest = float(np.abs(numbers).max(initial=0.0))
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    unit, letter = next(((u, a) for u, a in units if largest >= max(u, 10_000)), (1.0, ""))
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    exponents = math.floor(math.log10(largest or 1.0)), math.floor(math.log10(step) + 1e-9)
    form = f".{digits}f" if exponents[0] >= -3 else f".{exponents[0] - exponents[1]}e"
    shown = [format(number / unit, form) if number else "0" for number in numbers.tolist()]
    return numbers, [(one + letter * (one != "0")).replace("e-0", "e-").replace("-", "−") for one in shown]


def span(values: Array, margin: float = 0.05) -> tuple[float, float]:
    """Return the interval that shows the finite ``values``."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    beside = margin * (high - low) if high - low > 1e-9 * max(abs(low), abs(high)) else max(abs(low) * 0.1, 1e-3)
    return low - beside, high + beside


def _size(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


@dataclass(frozen=True)
class Axes:
    """Axes in a picture: what shows numbers in which pixels."""

    # from and to: pixels from the left, and from the top; numbers shown between them
    across: tuple[float, float]
    down: tuple[float, float]
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, values: ArrayLike) -> FloatArray:
        """Return pixels from the left."""
        return self.across[0] + (np.asarray(values, np.float64) - self.xs[0]) * (_size(self.across) / _size(self.xs))

    def y(self, values: ArrayLike) -> FloatArray:
        """Return pixels from the top."""
        return self.down[1] - (np.asarray(values, np.float64) - self.ys[0]) * (_size(self.down) / _size(self.ys))

    def left(self, most: int = 5) -> list[str]:
        """Draw the vertical axis: lines across, with their numbers."""
        numbers, texts = ticks(*self.ys, most)
        parts = [stroke(np.array(self.across), np.full(2, y), GRID, 1.0) for y in self.y(numbers)]
        return parts + [
            text(self.across[0] - 6, y + 4, words, "end", MUTED)
            for y, words in zip(self.y(numbers), texts, strict=True)
        ]

    def below(self, label: str = "", most: int = 6, whole: bool = False) -> list[str]:
        """Draw the horizontal axis with its numbers and what they are."""
        (left, right), bottom = self.across, self.down[1]
        numbers, texts = ticks(*self.xs, most, whole)
        parts = [stroke(np.array(self.across), np.full(2, bottom), MUTED, 1.0)]
        for x, words in zip(self.x(numbers), texts, strict=True):
            parts += [stroke(np.full(2, x), np.array([bottom, bottom + 4]), MUTED, 1.0)]
            parts += [text(x, bottom + LINE, words, "middle", MUTED)] if words else []
        return [*parts, text((left + right) / 2, bottom + 2 * LINE, label, "middle")] if label else parts


@dataclass(frozen=True)
class CurvePanel:
    """Curves over one horizontal axis."""

    label: str  # of the vertical axis
    lines: Mapping[str, Array]  # points ``[n, 2]`` of each curve, by name; one that is alone is not named
    # dotted lines, by name; those without a value are left out
    levels: Mapping[str, float | None] = field(default_factory=dict)
    title: str = ""  # before the label
    first: int = 0  # number of the first curve's colour in `COLOURS`
    # the curve to tell from the others, which are then all alike and not named; None: each has its colour
    marked: str | None = None
    bottom: float | None = None  # lowest value shown; None: as the curves have it

    @property
    def names(self) -> list[str]:
        """The legend's entries, as SVG."""
        if self.marked is not None or len(self.lines) < 2:
            return []
        styles = [_style(number) for number, _ in enumerate(self.lines, self.first)]
        return [
            f'<tspan fill="{colour}" font-weight="bold">{dash}</tspan> {plain(name)}'
            for name, (colour, (dash, _)) in zip(self.lines, styles, strict=True)
        ]


def _style(number: int) -> tuple[str, tuple[str, str]]:
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def draw_curves(panels: Sequence[CurvePanel], over: str = STEPS, size: tuple[float, float] = (480, 130)) -> bytes:
    """Draw panels of curves below each other, the first at the top, as SVG.

    ``over`` is the horizontal axis: environment steps, or whole numbers of something else; ``size`` are the picture's width and a
    panel's height, in pixels.
    """
    points = [np.concatenate([np.zeros((0, 2)), *map(_points, panel.lines.values())]) for panel in panels]
    xs, parts = span(np.concatenate(points)[:, 0], 0.02), []
    for at, (panel, seen) in enumerate(zip(panels, points, strict=True)):
        levels = [level for level in panel.levels.values() if level is not None]
        low, high = span(np.array([*seen[:, 1], *levels]))
        ys = (low, high) if panel.bottom is None else (panel.bottom, max(high, panel.bottom + 1e-9))
        axes = Axes((LEFT, size[0] - RIGHT), (at * size[1] + TOP, (at + 1) * size[1] - 6), xs, ys)
        named = panel.names if len(panel.names) <= LISTED else []
        words = plain(": ".join(filter(None, (panel.title, panel.label)))) + "".join(
            f'<tspan dx="16">{name}</tspan>' for name in named
        )
        parts += [f'<text x="{LEFT}" y="{axes.down[0] - 8:.1f}">{words}</text>', *axes.left(), *_curves(axes, panel)]
    height = size[1] * len(panels) + BOTTOM
    parts += axes.below(over, whole=over != STEPS)
    for panel in panels:
        if len(panel.names) > LISTED:
            parts += [
                f'<text x="{LEFT}" y="{height + LINE * row:.1f}">{name}</text>'
                for row, name in enumerate(panel.names, 1)
            ]
            height += LINE * len(panel.names) + 6
    return svg(size[0], height, parts)


def _points(line: Array) -> FloatArray:
    return np.asarray(line, np.float64).reshape(-1, 2)


def _curves(axes: Axes, panel: CurvePanel) -> list[str]:
    """Draw a panel's levels, and its curves above them, the marked one last."""
    parts = []
    for name, level in panel.levels.items():
        if level is not None:
            parts += [stroke(np.array(axes.across), np.full(2, axes.y(level)), MUTED, 1.0, "2 3")]
            parts += [text(axes.across[1] - 3, float(axes.y(level)) - 4, name, "end", MUTED)]
    for number, name in sorted(enumerate(panel.lines, panel.first), key=lambda of: of[1] == panel.marked):
        line = _points(panel.lines[name])
        x, y = thin(axes.x(line[:, 0]), axes.y(line[:, 1]))
        if panel.marked is None:
            colour, (_, dashes) = _style(number)
            parts.append(stroke(x, y, colour, 1.5, dashes, markers=2.0 if len(line) <= MARKED else 0.0))
        else:
            colour, wide = (ORANGE, 2.4) if name == panel.marked else (BLUE, 1.0)
            parts += [stroke(x, y, colour, wide), stroke(x[-1:], y[-1:], colour, markers=2.5)]
    return parts


def thin(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Keep of more points ``[n]`` than can be seen the lowest and the highest in each half of a pixel, in their order."""
    if len(x) <= 2000:
        return x, y
    order = np.lexsort((y, columns := np.floor(2 * x)))
    first = np.flatnonzero(np.diff(columns[order], prepend=np.nan))
    kept = np.unique(np.concatenate([order[first], order[first - 1]]))
    return x[kept], y[kept]
