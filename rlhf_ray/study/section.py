"""What a step reports: a section with checks, statements, tables and pictures. The report puts sections together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["rewards", "ignores", "uses", "holds", "outcome", "note", "warning"]


@dataclass(frozen=True)
class Statement:
    """One sentence of the verdict.

    Attributes:
        kind: of a run or a sweep, "outcome": what came of it. Of a reward, "rewards": what it seems to depend on; "ignores": what
            it does not. Of an agent, "uses": what its actions or values depend on, by intervention; "holds": what can be read off
            it, or what its value reacts to, but is not needed, as far as was tested; "ignores": what it does not react to.
            "warning": why to distrust the subject or a step. "note": what helps to read the section.
        text: the sentence, in plain words, with its figures.
        weight: orders the statements of one kind in a section, the largest first.
        about: the concept it is about; empty if none.
    """

    kind: Kind
    text: str
    weight: float = 0.0
    about: str = ""


@dataclass(frozen=True)
class Check:
    """One check of a step or of the subject.

    Attributes:
        name: what is checked.
        passed: whether it passed; None if it could not be made.
        value: the measured value; None without one.
        bound: what it has to be, in words, for example ``"> 0.5"``.
        says: what it means that the check failed (or could not be made); empty if it passed.
    """

    name: str
    passed: bool | None
    value: float | None = None
    bound: str = ""
    says: str = ""


@dataclass(frozen=True)
class Table:
    """A table: column heads, rows of texts and numbers, and a caption."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        name: file name without ending, unique within the section.
        image: the image, PNG.
        caption: what it shows.
        crossed_out: why not to trust it; None if all its checks passed. The picture itself is already drawn crossed out.
    """

    name: str
    image: bytes
    caption: str
    crossed_out: str | None = None


@dataclass(frozen=True)
class Section:
    """What one step finds.

    Attributes:
        name: the step's name.
        title: heading in the report.
        statements: sentences for the verdict.
        checks: the checks that the step made.
        tables: tables.
        pictures: pictures.
        values: all figures, for the report's JSON twin: numbers, texts, lists and dicts.
        skipped: why the step does not apply; None if it ran.
    """

    name: str
    title: str
    statements: Sequence[Statement] = ()
    checks: Sequence[Check] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    values: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
