"""Agreement of annotators: Krippendorff's alpha, beside the raw share of equal answers and the share that chance gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

RELIABLE, TENTATIVE = 0.8, 0.667
"""Krippendorff's thresholds of alpha (2004, section 11.4): below the second, data supports no conclusion."""
OPPOSITE = -0.2
"""Alpha below which annotators contradict each other more often than chance explains."""


@dataclass(frozen=True)
class AnnotatorAgreement:
    """How far annotators agree about units that several of them answered.

    Attributes:
        units: number of these units.
        alpha: Krippendorff's alpha, nominal: 1 for perfect agreement, 0 for chance, below 0 for less; None without such units, or
            where all answers are the same, so that chance explains everything.
        raw: share of equal answers among pairs of answers to one unit; None without such units.
        chance: the share that independent answers with the same frequencies would reach; None without such units.
        only: the one answer, where all answers are the same; else None.
    """

    units: int
    alpha: float | None
    raw: float | None
    chance: float | None
    only: str | None

    def __str__(self) -> str:
        value = "Krippendorff's alpha" if self.alpha is None else f"Krippendorff's alpha {self.alpha:.2f}"
        raw = "" if self.raw is None or self.chance is None else f"; raw {self.raw:.2f}, by chance {self.chance:.2f}"
        return f"{value} on {self.units} shared pairs ({self.words}{raw})"

    @property
    def words(self) -> str:
        """What alpha means, in a few words."""
        if self.units == 0:
            return "needs pairs labelled by two annotators"
        if self.alpha is None:
            return f"undefined: nothing varies, every answer is “{self.only}”"
        if self.alpha >= RELIABLE:
            return "reliable"
        if self.alpha >= TENTATIVE:
            return "good enough for tentative conclusions"
        if self.alpha > 0:
            return "low: annotators disagree"
        return "no better than chance" if self.alpha >= OPPOSITE else "below chance: annotators contradict each other"


def agreement(units: Iterable[Sequence[str]]) -> AnnotatorAgreement:
    """Measure the agreement of the answers to each of ``units``; units with fewer than two answers are ignored.

    Answers are categories that all units share, such as left, right and equal: chance is estimated from how often each occurs.
    """
    shared = [unit for unit in units if len(unit) >= 2]
    equal = [one == other for unit in shared for one, other in combinations(unit, 2)]
    values = Counter(answer for unit in shared for answer in unit)
    n = values.total()
    return AnnotatorAgreement(
        units=len(shared),
        alpha=alpha(shared),
        raw=sum(equal) / len(equal) if equal else None,
        chance=sum(count * (count - 1) for count in values.values()) / (n * (n - 1)) if n else None,
        only=next(iter(values)) if len(values) == 1 else None,
    )


def alpha(units: Iterable[Sequence[str]]) -> float | None:
    """Krippendorff's alpha for nominal data (Krippendorff 2011, "Computing Krippendorff's alpha-reliability", C).

    Args:
        units: the answers per unit, from categories that all units share; units with fewer than two answers are ignored.

    Returns:
        1 for perfect agreement, 0 for chance level, below 0 for less; None if there is nothing to compare or all answers are equal.
    """
    values = Counter[str]()
    observed = 0.0  # disagreement
    for unit in units:
        if len(unit) >= 2:
            counts = Counter(unit)
            values += counts
            observed += (len(unit) ** 2 - sum(count**2 for count in counts.values())) / (len(unit) - 1)
    n = values.total()
    expected = n**2 - sum(count**2 for count in values.values())
    return 1 - (n - 1) * observed / expected if expected else None
