"""What a report says first: the sections' statements and checks, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_ray.interpret.section import Kind, Section

MOST = 6
"""Statements of one kind on the page; the JSON has all."""


@dataclass(frozen=True)
class Said:
    """A statement and the section it comes from."""

    text: str
    section: str
    title: str


def statements(sections: Sequence[Section], kind: Kind) -> tuple[Said, ...]:
    """Return the statements of a kind. The sections take turns, each with its weightiest first: no section drowns the others."""
    chosen = []
    for place, section in enumerate(sections):
        own = sorted((each for each in section.statements if each.kind == kind), key=lambda each: -each.weight)
        own = list({each.text: each for each in own}.values())
        chosen += [(turn, place, Said(each.text, section.name, section.title)) for turn, each in enumerate(own)]
    return tuple(said for _, _, said in sorted(chosen, key=lambda each: each[:2]))


def checks(sections: Sequence[Section], passed: bool | None) -> tuple[Said, ...]:
    """Return the checks that passed, failed or could not be made (None), without those that a statement already tells."""
    warned = {statement.text for section in sections for statement in section.statements}
    return tuple(
        Said(f"{check.name}: {check.says}" if check.says else check.name, section.name, section.title)
        for section in sections
        for check in section.checks
        if check.passed is passed and check.says not in warned  # once is enough
    )
