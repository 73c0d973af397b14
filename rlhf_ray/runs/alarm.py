"""An alarm, and what alarms about annotators share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.store.answers import Presses

Row = dict[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True)
class Alarm:
    """A problem in training.

    Attributes:
        name: fixed name of the alarm.
        message: the finding, with numbers.
        remedy: how to fix it.
    """

    name: str
    message: str
    remedy: str


def presses_of(rows: Rows) -> dict[str, Presses]:
    """What each annotator chose in their newest answers, as of the newest fit that tells."""
    for row in reversed(rows):
        sides = {side: {} for side in ("left", "right", "equal")}  # type: dict[str, dict[str, int]]
        for metric, value in row.items():
            head, _, name = metric.partition("/")
            if name and (side := head.removeprefix("chosen_")) in sides and value is not None:
                sides[side][name] = int(value)
        names = dict.fromkeys(name for of in sides.values() for name in of)
        if names:
            return {name: Presses(**{side: of.get(name, 0) for side, of in sides.items()}) for name in names}
    return {}


def talk_to(names: Iterable[str]) -> str:
    """Say what to do about the annotators ``names``."""
    commands = ", ".join(f"`rlhf-ray store weigh RUN {name} 0`" for name in names)
    return f"talk to {' and '.join(names)}, or leave their answers out ({commands})"
