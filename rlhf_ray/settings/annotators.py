"""How a setting names the annotators of a population: ``oracle``, ``oracle=2``, ``oracle@30``, ``oracle=2@30``."""

from __future__ import annotations

import contextlib
import math
import re
from typing import NamedTuple

from rlhf_ray.data.whole import whole_number
from rlhf_ray.settings.checks import require

_ENTRY = re.compile(r"(?P<teacher>[^=@]+)(=(?P<share>[^=@]+))?(@(?P<after>[^=@]+))?")


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
    share, after, match = 0.0, None, _ENTRY.fullmatch(text)
    if match is not None:
        with contextlib.suppress(ValueError):
            share, after = (
                float(match["share"] or 1.0),
                None if match["after"] is None else whole_number(match["after"]),
            )
    forms = "write a teacher's name, with =SHARE (above 0) for another share than 1, and @ANSWERS (1 or more) to leave after them"
    valid = 0 < share < math.inf and (after is None or after >= 1)
    require(valid, setting, text, f"{forms}, as in oracle=2@30")
    teacher = match["teacher"] if match else ""
    require(
        teacher not in ("population", "human"),
        setting,
        text,
        "a population is of single scripted annotators: name these, and set preferences.human_share to ask people too",
    )
    return AnnotatorEntry(teacher, share, after)
