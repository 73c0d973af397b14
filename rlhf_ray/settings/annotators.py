"""How a setting names the annotators of a population: ``oracle``, ``oracle=2``, ``oracle@30``, ``oracle=2@30``."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from rlhf_ray.data.whole import LARGEST
from rlhf_ray.settings.checks import require

_ENTRY = re.compile(r"(?P<teacher>[^=@]+)(=(?P<share>[^=@]*))?(@(?P<after>[^=@]*))?")


class AnnotatorEntry(NamedTuple):
    """One annotator of a population.

    Attributes:
        teacher: the teacher's name.
        share: relative share of the questions, above 0.
        after: number of answers after which the annotator leaves; None for never.
    """

    teacher: str
    share: float = 1.0
    after: int | None = None


def read_annotator(text: str, setting: str) -> AnnotatorEntry:
    """Read one entry of ``setting``.

    Raises:
        SettingError: it is none, or its teacher can't be in a population.
    """
    match = _ENTRY.fullmatch(text)
    forms = "write a teacher's name, with =SHARE for another share than 1, and @ANSWERS to leave after that many"
    require(match is not None, setting, text, f"{forms}, as in oracle=2@30")
    teacher, share, after = (match[name] for name in ("teacher", "share", "after")) if match else ("", None, None)
    require(teacher != "population", setting, text, "a population is of single annotators: name these")
    require(
        teacher != "human",
        setting,
        text,
        "a population is of scripted annotators: remove it, and set preferences.human_share to ask people too",
    )
    part = 1.0 if share is None else _number(share)
    require(0 < part < math.inf, setting, text, "the share after = must be a number above 0")
    answers = None if after is None else _number(after)
    whole = answers is None or (1 <= answers <= LARGEST and answers.is_integer())
    require(whole, setting, text, "the number of answers after @ must be a whole number of 1 or more")
    return AnnotatorEntry(teacher, part, None if answers is None else int(answers))


def _number(text: str) -> float:
    """Return the number that ``text`` is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
