"""Did you mean: the known names nearest to one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST = 0.7
"""Likeness below which a name is no suggestion."""
CLOSE = 0.06
"""How much less alike than the best a further suggestion may be."""
ELSEWHERE = 0.05
"""What a name loses if it is in another group than the one asked for."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the names in ``known`` that ``name`` may mean, the likeliest first; none if nothing is near.

    Args:
        name: a name, or ``group.name``. It may be misspelt, abbreviated (``lr``, ``ent_coef``), or lack its group. Hyphens count as
            underscores, capitals as small letters.
        known: the names that exist.
        most: how many names to return at most.
    """
    scores = {each: _likeness(_plain(name), _plain(each)) for each in known}
    least = max(LEAST, max(scores.values(), default=0.0) - CLOSE)
    close = sorted((each for each, score in scores.items() if score >= least), key=lambda each: -scores[each])
    return close[:most]


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return "did you mean A or B?" with the `nearest` names, each written as ``form``; an empty string if nothing is near."""
    names = [form.format(close) for close in nearest(name, known)]
    return f"did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?" if names else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _likeness(name: str, known: str) -> float:
    """A number from 0 to 1."""
    group, _, last = name.rpartition(".")
    their_group, _, their_last = known.rpartition(".")
    score = _alike(last, their_last)
    if group == their_group:
        return score
    if not group or not their_group:
        return score - ELSEWHERE
    return min(score, _alike(group, their_group)) - ELSEWHERE


def _alike(word: str, known: str) -> float:
    """A number from 0 to 1: the share of letters in common; high too if one abbreviates the other."""
    letters = difflib.SequenceMatcher(None, word, known).ratio()
    initials = "".join(part[:1] for part in known.split("_"))
    of_last_words = 0.8 if len(word) > 1 and initials.endswith(word) else 0.0
    return max(
        letters,
        0.9 if len(word) > 1 and initials == word else of_last_words,
        0.9 * _abbreviates(word, known),
        0.8 * _abbreviates(known, word),
    )


def _abbreviates(name: str, known: str) -> bool:
    """Whether the words of ``name`` are beginnings of words of ``known``, in their order."""
    rest = iter(known.split("_"))
    return all(len(part) > 2 and any(word.startswith(part) for word in rest) for part in name.split("_"))
