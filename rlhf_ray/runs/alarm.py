"""An alarm, the registry of the functions that raise them, and what those about annotators share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import gymnasium as gym

from rlhf_ray.store.answers import Presses
from rlhf_ray.study.words import Words

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


@dataclass(frozen=True)
class Task:
    """What alarms know of the environment.

    Attributes:
        action_space: its action space, to interpret the policy's entropy.
        limited: whether it has a time limit. Without one, episodes may never end.
    """

    action_space: gym.Space[Any]
    limited: bool = True


Figures = dict[str, Any] | None
"""What an alarm found, for its words; None if there is no problem."""
Check = Callable[..., Alarm | None]

CHECKS: dict[str, Check] = {}
"""All alarms by name. Each is a function of the metrics so far and the environment's `Task`."""


def check(words: Words) -> Callable[[Callable[..., Figures]], Check]:
    """Register an alarm, a function of the metrics so far (and the `Task`), under its name.

    The function returns the figures of a problem, or None. In ``words``, the texts NAME and NAME_remedy say what it found.
    """

    def register(function: Callable[..., Figures]) -> Check:
        name, takes_task = function.__name__, len(signature(function).parameters) > 1

        @wraps(function)
        def alarm(rows: Rows, task: Task | None = None) -> Alarm | None:
            figures = function(rows, task) if takes_task else function(rows)
            if figures is None:
                return None
            return Alarm(name, words.text(name, **figures), words.text(f"{name}_remedy", **figures))

        CHECKS[name] = alarm
        return alarm

    return register


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
