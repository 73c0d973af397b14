"""What a study says first: the sections' statements and checks, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_ray.study.section import Section

MOST = 6
"""Statements of one kind on the page; the JSON has all."""


@dataclass(frozen=True)
class Told:
    """A statement and the section it comes from."""

    text: str
    section: str
    title: str


@dataclass(frozen=True)
class StudyVerdict:
    """What the page says first.

    Attributes:
        statements: what was found, by kind (see `rlhf_ray.study.section.Statement`), the strongest first.
        warnings: reasons to distrust the subject or a step.
        failed: failed checks.
        unchecked: checks that could not be made.
    """

    statements: dict[str, tuple[Told, ...]]
    warnings: tuple[Told, ...]
    failed: tuple[Told, ...]
    unchecked: tuple[Told, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        lists = self.statements | {"warnings": self.warnings, "failed": self.failed, "unchecked": self.unchecked}
        return {kind: [vars(told) for told in tolds] for kind, tolds in lists.items()}


def reconcile(sections: Sequence[Section], kinds: Sequence[str], first: Sequence[str] = ()) -> StudyVerdict:
    """Put the sections' statements and checks together.

    Args:
        sections: the sections, in the order of the page.
        kinds: kinds of statements, besides warnings.
        first: sections whose statements come before the others', by name.
    """
    ordered = sorted(sections, key=lambda section: first.index(section.name) if section.name in first else len(first))
    return StudyVerdict(
        {kind: statements(ordered, kind) for kind in kinds},
        statements(sections, "warning"),
        checks(sections, False),
        checks(sections, None),
    )


def without(sections: Sequence[Section], kind: str, concepts: set[str]) -> list[Section]:
    """Return the sections without their statements of ``kind`` about ``concepts``."""
    return [
        replace(
            section,
            statements=[
                statement
                for statement in section.statements
                if statement.kind != kind or statement.about not in concepts
            ],
        )
        for section in sections
    ]


def statements(sections: Sequence[Section], kind: str) -> tuple[Told, ...]:
    """Return the statements of a kind. The sections take turns, each with its weightiest first: no section drowns the others.

    What several sections say is the first one's.
    """
    chosen = []
    for place, section in enumerate(sections):
        ranked = sorted((each for each in section.statements if each.kind == kind), key=lambda each: -each.weight)
        unique = list({each.text: each for each in ranked}.values())
        chosen += [(turn, place, Told(each.text, section.name, section.title)) for turn, each in enumerate(unique)]
    first: dict[str, Told] = {}
    for _, _, told in sorted(chosen, key=lambda each: each[:2]):
        first.setdefault(told.text, told)
    return tuple(first.values())


def checks(sections: Sequence[Section], passed: bool | None) -> tuple[Told, ...]:
    """Return the checks that passed, failed or could not be made (None), without those that a statement already tells."""
    warned = {statement.text for section in sections for statement in section.statements}
    return tuple(
        Told(f"{check.name}: {check.says}" if check.says else check.name, section.name, section.title)
        for section in sections
        for check in section.checks
        if check.passed is passed and check.says not in warned  # once is enough
    )
