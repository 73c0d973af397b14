"""What a step reports: a section with checks, statements, tables and pictures. The report puts sections together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["rewards", "ignores", "uses", "holds", "outcome", "note", "warning"]
Stance = Literal["yes", "no", ""]
Strength = Literal["strong", "moderate", "weak", ""]


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
        about: what it is about, for example a concept or a feature; several are separated by "; ". Empty if nothing in particular.
        key: ``STEP.NAME`` of its words.
        stance: whether it says that the subject depends on what it is ``about``, or that it does not. Two statements of a verdict
            about one thing never have opposite stances.
        line: what the first screen says; empty if it is not there.
        figure: the line's figure, with its interval and its control.
        strength: how strong the evidence is, see `rlhf_ray.study.screen.strength`.
        list: the list of the first screen that has the line; empty: the line is one of the numbered causes.
        changes: concepts that an edit changes that it tells of, separated by "; ": its evidence is theirs as well.
    """

    kind: Kind
    text: str
    weight: float = 0.0
    about: str = ""
    key: str = ""
    stance: Stance = ""
    line: str = ""
    figure: str = ""
    strength: Strength = ""
    list: str = ""
    changes: str = ""

    @property
    def changed(self) -> set[str]:
        """The concepts that it is evidence of, one by one."""
        return {concept for concept in self.changes.split("; ") if concept}

    @property
    def subjects(self) -> set[str]:
        """What it is about, one by one."""
        return {subject for subject in self.about.split("; ") if subject}


@dataclass(frozen=True)
class Check:
    """One check of a step or of the subject.

    Attributes:
        name: what is checked.
        passed: whether it passed; None if it could not be made.
        value: the measured value; None without one.
        bound: what it has to be, in words, for example ``"> 0.5"``.
        says: what it means that the check failed (or could not be made); empty if it passed.
        key: ``STEP.NAME`` of its words.
        about: as `Statement.about`; a check that passed has the stance "yes", one that failed "no".
        absent: the fault that the check rules out if it passes, in a word or two, for the first screen; empty if it is not there.
    """

    name: str
    passed: bool | None
    value: float | None = None
    bound: str = ""
    says: str = ""
    key: str = ""
    about: str = ""
    absent: str = ""


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
