"""The verdict: what the reward seems to reward, what it ignores, what to distrust. Made of the sections' statements and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.interpret.report.said import Said, checks, statements
from rlhf_ray.interpret.section import Section


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
    return RewardVerdict(
        statements(sections, "rewards"),
        statements(sections, "ignores"),
        statements(sections, "warning"),
        checks(sections, False),
        checks(sections, None),
    )
