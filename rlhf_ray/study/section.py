"""What a step reports: a section of figures, checks, effects, tables and pictures. The page puts sections together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_ray.measure.intervals import MeanEstimate


@dataclass(frozen=True)
class Check:
    """A figure with the bound that it has to keep."""

    name: str  # what is checked
    passed: bool | None  # whether the figure keeps its bound; None if that is undecided, or can't be told
    value: float | None = None  # the figure; None without one
    # low, high: its 95 % interval; None without one
    low: float | None = None
    high: float | None = None
    bound: str = ""  # what it has to be, in words, for example ``"> 0.5"``
    remedy: str = ""  # what to do if it does not pass; empty if it passed

    @classmethod
    def of(
        cls, name: str, passed: bool | None, found: MeanEstimate | float | None, bound: str = "", remedy: str = ""
    ) -> Check:
        """Make a check of an estimate, or of a number without an interval; one that passed needs no remedy."""
        remedy = "" if passed else remedy
        if isinstance(found, MeanEstimate):
            return cls(name, passed, found.mean, found.low, found.high, bound, remedy)
        return cls(name, passed, found, bound=bound, remedy=remedy)

    @property
    def shown(self) -> str:
        """The figure as text; yes or no without one."""
        if self.value is not None or self.passed is None:
            return figure(self.value)
        return "yes" if self.passed else "no"

    @property
    def kept(self) -> str:
        """Whether the figure keeps its bound, with its interval: "8 to 17 · must be ≤ 5"; empty without a bound."""
        interval = "" if self.low is None else f"{figure(self.low)} to {figure(self.high)}"
        verb = {True: "keeps", False: "must be", None: "undecided:"}[self.passed]
        return " · ".join(part for part in (interval, self.bound and f"{verb} {self.bound}") if part)

    @property
    def text(self) -> str:
        """The check in one line, for terminals."""
        kept = f" ({self.kept})" if self.kept else ""
        return f"{self.name}: {self.shown}{kept}" + (f". {self.remedy}" if self.remedy else "")


def figure(value: Any) -> str:
    """Format a value for people: numbers with three significant digits, a dash for nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−") if abs(value) >= 10_000 else str(value).replace("-", "−")
    if isinstance(value, float):
        if value and not 1e-3 <= abs(value) < 1e6:
            return f"{value:.1e}".replace("-", "−")
        digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:{',' if abs(value) >= 10_000 else ''}.{min(digits, 4)}f}".replace("-", "−")
    return str(value)


@dataclass(frozen=True)
class Effect:
    """A row of a table of effects: one thing that was exchanged, edited or removed, and what that does."""

    name: str  # the thing
    figures: dict[str, MeanEstimate]  # by the table's columns; one that is unknown is missing
    control: float | None = None  # the largest effect of a made-up change of the same size; None without one
    parts: tuple[Effect, ...] = ()  # rows of its parts, each alone

    def text(self, column: str) -> str | None:
        """Return a figure with its interval as text; None if it is unknown."""
        found = self.figures.get(column)
        return None if found is None or not math.isfinite(found.mean) else found.text().replace("-", "−")


@dataclass(frozen=True)
class Effects:
    """A table of measured effects, sorted by size. No row suppresses, explains or outranks another one."""

    name: str  # unique within the section
    title: str  # what it tells
    columns: tuple[str, ...]  # the figures of each row; rows are sorted by the first that they have
    rows: tuple[Effect, ...]  # the rows, the largest first
    caption: str = ""  # what the figures mean, and what the control is

    @classmethod
    def sort(cls, name: str, title: str, columns: Sequence[str], rows: Sequence[Effect], caption: str = "") -> Effects:
        """Make a table, its rows and their parts sorted by the size of the first column that they have."""

        def size(row: Effect) -> float:
            found = [row.figures[column] for column in columns if column in row.figures]
            return -abs(found[0].mean) if found and found[0].mean == found[0].mean else 1.0

        def sort(rows: Sequence[Effect]) -> tuple[Effect, ...]:
            ordered = sorted(rows, key=size)
            return tuple(Effect(row.name, row.figures, row.control, sort(row.parts)) for row in ordered)

        return cls(name, title, tuple(columns), sort(rows), caption)


@dataclass(frozen=True)
class Table:
    """A table: column heads, rows of texts and numbers, and a caption."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture."""

    name: str  # file name without ending, unique within the section
    image: bytes  # the image: PNG, SVG or WebP
    caption: str  # what it shows
    # why not to trust it; None if all its checks passed. The picture itself is already drawn crossed out.
    crossed_out: str | None = None

    @property
    def kind(self) -> str:
        """The image's format, as files and browsers name it."""
        return "webp" if self.image[8:12] == b"WEBP" else "svg" if self.image[:4] == b"<svg" else "png"


@dataclass(frozen=True)
class Section:
    """What one step finds.

    Attributes:
        name: the step's name.
        title: heading in the report.
        checks: figures with their bounds.
        effects: tables of effects.
        tables: other tables.
        pictures: pictures.
        notes: what a reader has to know to read them: what was left out, what is unknown. No findings.
        values: all figures, for the report's JSON twin: numbers, texts, lists and dicts.
        skipped: why the step does not apply; None if it ran.
    """

    name: str
    title: str
    checks: Sequence[Check] = ()
    effects: Sequence[Effects] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    values: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
