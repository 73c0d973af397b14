"""Planted causes: rewards and agents whose cause is known, and where a report must show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_ray.interpret.agent.subject import AgentSubject
    from rlhf_ray.interpret.reward.subject import Subject

FIRST = 3
"""Rows of a table of effects among which the cause must be."""


@dataclass(frozen=True)
class Case:
    """A reward or an agent with a planted cause.

    Attributes:
        name: short and unique.
        truth: what is true of it, in words.
        subject: makes what the study examines.
        cause: regular expression that the name of one of the first `FIRST` rows of a table of effects matches, or a leaf of the
            tree, whatever the case. Of a reward without a flaw: ``""``.
        effect: the row's effect on the learned reward, where it is known by construction: its interval holds it.
        flawed: whether there is a flaw. Without one, no row is beyond its control.
    """

    name: str
    truth: str
    subject: Callable[[], Subject | AgentSubject]
    cause: str
    effect: float | None = None
    flawed: bool = True


def judge(case: Case, report: dict[str, Any]) -> dict[str, Any]:
    """Return where a report, its twin in JSON, shows the cause, and which rows are beyond their controls."""
    sections = {section["name"]: section for section in report["sections"]}
    tables = [table for section in report["sections"] for table in section["effects"] if table["name"] != "beside"]
    beside = [table for section in report["sections"] for table in section["effects"] if table["name"] == "beside"]
    first = [row for table in [*tables, *beside] for row in table["rows"][:FIRST]]
    leaves = [row[0] for section in sections.values() for table in section["tables"] for row in table["rows"][:FIRST]
              if table["columns"][0] == "steps"]  # fmt: skip
    named = [row for row in first if re.search(case.cause, row["name"], re.IGNORECASE)] if case.cause else []
    held = case.effect is None or any(_holds(row["figures"].get("learned"), case.effect) for row in named)
    split = bool(case.cause) and any(re.search(case.cause, leaf, re.IGNORECASE) for leaf in leaves)
    beyond = [
        f"{row['name']}: {size:.3f} > {row['control']:.3f}" for row, size in _sizes(tables) if size > row["control"]
    ]
    return {
        "name": case.name,
        "truth": case.truth,
        "flawed": case.flawed,
        "answer": report["answer"],
        "rows": [row["name"] for row in first],
        "shown": (bool(named) or split) and held,
        "by": "row" if named else "tree" if split else "",
        "beyond_control": beyond,
    }


def _holds(figure: dict[str, Any] | None, value: float) -> bool:
    if figure is None:
        return False
    low, high = (figure["mean"] if end is None else end for end in (figure["low"], figure["high"]))
    return bool(low - 1e-6 <= value <= high + 1e-6)


def _sizes(tables: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield rows that have a control, and the lower end of what is compared with it: of a difference, or of changed actions."""
    for table in tables:
        for row in table["rows"]:
            figure = row["figures"].get("difference") or row["figures"].get("actions changed")
            if figure is not None and row["control"] is not None:
                yield row, figure["mean"] if figure["low"] is None else figure["low"]
