"""The verdict: what the reward seems to reward, what it ignores, what to distrust. Made of the sections' statements and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.interpret.reward.section import Kind, Section

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
    found = [(statement, section) for section in sections for statement in section.statements]

    def of(kind: Kind) -> tuple[Said, ...]:
        chosen = [(statement, section) for statement, section in found if statement.kind == kind]
        chosen.sort(key=lambda pair: -pair[0].weight)  # stable: sections stay in order
        return tuple(Said(statement.text, section.name, section.title) for statement, section in chosen)

    warned = {statement.text for statement, _ in found}

    def checks(passed: bool | None) -> tuple[Said, ...]:
        return tuple(
            Said(f"{check.name}: {check.says}" if check.says else check.name, section.name, section.title)
            for section in sections
            for check in section.checks
            if check.passed is passed and check.says not in warned  # once is enough
        )

    return RewardVerdict(of("rewards"), of("ignores"), of("warning"), checks(False), checks(None))
