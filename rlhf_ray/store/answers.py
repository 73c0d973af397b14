"""What stored answers tell about those who gave them: which side they chose, how far they agree, and what may be wrong."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.comparisons import Side, side_of
from rlhf_ray.measure.agreement import AnnotatorAgreement, agreement
from rlhf_ray.store.schema import holding, rows_holding, take

ONE_SIDED = 4.0
"""Standard errors from one half, for a fair coin: reached by 16 of 16 answers for one side, or 40 of 50."""

FEW_ANSWERS = 20
"""Minimum number of answers for a meaningful share of "equally good"."""

MOSTLY = 0.8
"""Share of "equally good" above which nearly all answers are."""

REVIEWED_BY = "reviewed_by"
"""Key of ``extra`` in an answer that somebody looked at again and kept or changed: who. It stands."""
BEFORE = "before"
"""Key of ``extra`` in such an answer: the side as shown that its annotator had chosen."""
_OF_SIDES: Mapping[str, float] = {"left": 1.0, "right": 0.0, "equal": 0.5}

Suspicions = Mapping[tuple[str, str], float]
"""How likely answers are wrong, by pair id and annotator."""


@dataclass(frozen=True)
class Presses:
    """How often someone chose what was shown on the left, what was shown on the right, and "equally good"."""

    left: int = 0
    right: int = 0
    equal: int = 0

    @property
    def decided(self) -> int:
        """Number of answers for a side."""
        return self.left + self.right

    @property
    def answers(self) -> int:
        """Number of answers."""
        return self.decided + self.equal

    @property
    def one_sided(self) -> Literal["left", "right"] | None:
        """The side of nearly all answers, although sides are random; None if both are chosen."""
        if abs(self.left - self.right) < ONE_SIDED * math.sqrt(self.decided) or not self.decided:
            return None
        return "left" if self.left > self.right else "right"

    @property
    def mostly_equal(self) -> bool:
        """Whether nearly all answers are "equally good"."""
        return self.answers >= FEW_ANSWERS and self.equal > MOSTLY * self.answers

    def __str__(self) -> str:
        return f"{self.left} left, {self.right} right, {self.equal} equal"


def count_presses(answers: Iterable[tuple[str, Side]]) -> dict[str, Presses]:
    """Count each annotator's answers by the side as shown, from annotators and sides."""
    counts: dict[str, Counter[Side]] = {}
    for name, side in answers:
        counts.setdefault(name, Counter())[side] += 1
    return {name: Presses(of["left"], of["right"], of["equal"]) for name, of in counts.items()}


def own_preference(preference: float, swapped: bool | None, extra: str | None) -> float:
    """Return what the annotator of an active answer preferred, whoever looked at it again and changed it.

    Answers that one person gave for another are not independent of that person's. What annotators took back and answered anew
    themselves is theirs: a slip. ``swapped``: the left fragment was shown on the right.
    """
    if extra is None or REVIEWED_BY not in extra:
        return preference
    noted = json.loads(extra)
    shown = _OF_SIDES.get(noted.get(BEFORE)) if REVIEWED_BY in noted else None
    return preference if shown is None else 1.0 - shown if swapped else shown


def sides_in(labels: pa.Table) -> list[Side]:
    """Return the side as shown of each own answer (`own_preference`) among ``labels`` (`Snapshot.labels`)."""
    rows = zip(*(labels[name].to_pylist() for name in ("preference", "presented_swapped", "extra")), strict=True)
    return [side_of(own_preference(preference, swapped, extra), swapped) for preference, swapped, extra in rows]


def agreement_in(events: pa.Table, weights: Mapping[str, float]) -> AnnotatorAgreement:
    """Measure the agreement of people about pairs that several of them answered, by what each preferred (`own_preference`).

    The categories are left, right and equal, of the pair's own sides, because the sides as shown are random. Where a pair is stored
    in both orders, the first one counts. Scripted teachers and annotators of weight 0 are left out.

    Args:
        events: `PreferenceStore.events`.
        weights: `PreferenceStore.weights`.
    """
    names = ("left_id", "right_id", "preference", "presented_swapped", "extra", "annotator", "annotator_type")
    labels = take(events.select(names), rows_holding(events))
    first: dict[frozenset[str], str] = {}
    sides: dict[frozenset[str], dict[str, Side]] = {}
    rows = zip(*(labels[name].to_pylist() for name in names), strict=True)
    for left, right, preference, swapped, extra, who, kind in rows:
        if kind != "scripted" and weights.get(who, 1.0) > 0:
            pair = frozenset((left, right))
            own = own_preference(preference, swapped, extra)
            sides.setdefault(pair, {})[who] = side_of(own, swapped=first.setdefault(pair, left) != left)
    return agreement([list(answers.values()) for answers in sides.values()])


def doubtful(events: pa.Table, suspicions: Suspicions) -> list[tuple[float, dict[str, Any]]]:
    """Return the rows of the active answers in ``suspicions`` with how likely they are wrong, the likeliest first.

    Leaves out answers that somebody has looked at again (`REVIEWED_BY`).

    Args:
        events: `PreferenceStore.events`.
        suspicions: how likely which answers are wrong.
    """
    held = holding(events, {pair for pair, _ in suspicions})
    numbers = [(suspicions[key], row) for key, row in held.items() if key in suspicions]
    rows = [(chance, events.slice(row, 1).to_pylist()[0]) for chance, row in sorted(numbers, reverse=True)]
    return [(chance, row) for chance, row in rows if REVIEWED_BY not in json.loads(row["extra"] or "{}")]
