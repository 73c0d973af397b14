"""The verdict: what the reward seems to reward, what it ignores, what to distrust. Made of the sections' statements and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.interpret.section import Kind, Section

MOST = 6
"""Statements of one kind on the page; the JSON has all."""


@dataclass(frozen=True)
class Said:
    """A statement and the section it comes from."""

    text: str
    section: str
    title: str


@dataclass(frozen=True)
class RewardVerdict:
    """What the report says first.

    Attributes:
        rewards: what the reward depends on, the strongest first.
        ignores: what it does not depend on.
        warnings: reasons to distrust the reward.
        failed: failed checks of the reward or of tools.
        unchecked: checks that could not be made.
    """

    rewards: tuple[Said, ...]
    ignores: tuple[Said, ...]
    warnings: tuple[Said, ...]
    failed: tuple[Said, ...]
    unchecked: tuple[Said, ...]

    def values(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {kind: [vars(said) for said in of] for kind, of in vars(self).items()}


def verdict(sections: Sequence[Section]) -> RewardVerdict:
    """Put the sections' statements and checks together."""

    def of(kind: Kind) -> tuple[Said, ...]:
        """The sections take turns, in their order, each with its weightiest statement first: no section drowns the others."""
        chosen = []
        for place, section in enumerate(sections):
            own = sorted((each for each in section.statements if each.kind == kind), key=lambda each: -each.weight)
            chosen += [(turn, place, Said(each.text, section.name, section.title)) for turn, each in enumerate(own)]
        return tuple(said for _, _, said in sorted(chosen, key=lambda each: each[:2]))

    warned = {statement.text for section in sections for statement in section.statements}

    def checks(passed: bool | None) -> tuple[Said, ...]:
        return tuple(
            Said(f"{check.name}: {check.says}" if check.says else check.name, section.name, section.title)
            for section in sections
            for check in section.checks
            if check.passed is passed and check.says not in warned  # once is enough
        )

    return RewardVerdict(of("rewards"), of("ignores"), of("warning"), checks(False), checks(None))
