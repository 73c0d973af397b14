"""An alarm, and how the functions that raise alarms read a run's metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Row]
"""The metrics so far: the rows of ``metrics.jsonl``, the oldest first."""


@dataclass(frozen=True)
class Alarm:
    """A problem in training.

    Attributes:
        name: fixed name of the alarm.
        message: the finding, with numbers.
        remedy: how to fix it.
        value: the figure that is out of bounds.
        bound: what it has to be.
    """

    name: str
    message: str
    remedy: str
    value: float
    bound: str


def has(row: Row, *names: str) -> bool:
    """Return whether a row has finite values for all these metrics."""
    return all(isinstance(row.get(name), int | float) and math.isfinite(row[name]) for name in names)


def newest(rows: Rows, count: int, *names: str) -> list[Row]:
    """Return the newest ``count`` rows (or fewer) that have all these metrics, oldest first."""
    found: list[Row] = []
    for row in reversed(rows):
        if has(row, *names):
            found.append(row)
            if len(found) == count:
                break
    return found[::-1]
