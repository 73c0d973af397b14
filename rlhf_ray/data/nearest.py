"""Did you mean: the known names nearest to one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST = 0.7
"""Likeness below which a name is no suggestion."""
CLOSE = 0.06
"""How much less alike than the best a further suggestion may be."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the names in ``known`` that ``name`` may mean, the likeliest first; none if nothing is near.

    Args:
        name: a name, or ``group.name``. It may be misspelt, abbreviated (``lr``, ``ent_coef``), or lack its group. Hyphens count as
            underscores, capitals as small letters.
        known: the names that exist.
        most: how many names to return at most.
    """
    plain = name.lower().replace("-", "_")
    scores = {each: _likeness(plain, each.lower().replace("-", "_")) for each in known}
    least = max(LEAST, max(scores.values(), default=0.0) - CLOSE)
    close = sorted((each for each, score in scores.items() if score >= least), key=lambda each: -scores[each])
    return close[:most]


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return "did you mean A or B?" with the `nearest` names, each written as ``form``; an empty string if nothing is near."""
    names = [form.format(close) for close in nearest(name, known)]
    return f"did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?" if names else ""


def _likeness(name: str, known: str) -> float:
    """A number from 0 to 1: the share of letters in common; high too if one abbreviates the other."""
    (group, _, last), (other, _, full) = name.rpartition("."), known.rpartition(".")
    initials = len(last) > 1 and "".join(part[:1] for part in full.split("_")).endswith(last)
    short = 0.8 if initials or _abbreviates(last, full) or _abbreviates(full, last) else 0.0
    alike = max(short, difflib.SequenceMatcher(None, last, full).ratio())
    if group and other:
        alike = min(alike, max(_abbreviates(group, other), difflib.SequenceMatcher(None, group, other).ratio()))
    return alike if group == other else alike - CLOSE / 2


def _abbreviates(name: str, known: str) -> bool:
    """Whether the words of ``name`` are beginnings of words of ``known``, in their order."""
    rest = iter(known.split("_"))
    return all(len(part) > 2 and any(word.startswith(part) for word in rest) for part in name.split("_"))
