"""The first screen of a study's report: one line for each cause, its strength, one figure; then short lists; the rest is folded.

Whoever opens a report has a minute. The screen stays within `WORDS` words and `NUMBERS` numbers; lines that don't fit are counted,
and are among the statements below the fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.section import Section, Statement, Strength
from rlhf_ray.study.verdict import Relations, StudyVerdict

WORDS, NUMBERS = 90, 20
"""Most words and numbers on the first screen, with the heading, the fold and the page's footer."""
AROUND, NUMBERS_AROUND = 24, 3
"""Words and numbers of the fold and the footer."""
CAUSES, ENTRIES = 4, 3
"""Most causes, and most entries of a list."""
BEFORE_LISTS = 2
"""Causes that come before the first entry of a list, if there is no room for both; one more comes before the other lists'."""
ABSENT, NOT_ASKED = "FOUND NO", "NOT ASKED"
"""Lists that don't come from statements: faults that checks rule out; checks that can't be made, and skipped steps."""
HALF, TENTH = 0.5, 0.1
"""Shares of the largest possible effect from which on evidence is strong (more than everything else together), and moderate."""


def strength(effect: MeanEstimate | tuple[float, float], control: float = 0.0) -> Strength:
    """Say how strong an effect is: by the end of its 95 % interval that is nearer to 0.

    Args:
        effect: as a share of the largest possible effect; a tuple: its interval.
        control: the largest effect that comes about without a cause, in the same units.

    Returns:
        "strong": at least half of what is possible, and beyond the control; "moderate": at least a tenth, and beyond the control;
        "weak": less.
    """
    low, high = effect if isinstance(effect, tuple) else (effect.low, effect.high)
    if low is None or high is None or low <= 0.0 <= high:
        return "weak"
    near = min(abs(low), abs(high))
    return "weak" if near <= abs(control) or near < TENTH else "strong" if near >= HALF else "moderate"


@dataclass(frozen=True)
class Line:
    """A line of the screen: its words and figure, the strength of its evidence, where the evidence is, and the statement's kind."""

    text: str
    figure: str = ""
    strength: Strength = ""
    section: str = ""
    about: str = ""
    key: str = ""
    kind: str = ""

    @property
    def verdict(self) -> str:
        """The capitals that it begins with."""
        match = re.match(r"[A-Z][A-Z ,?]*(?![a-z])", self.text)
        return match.group().strip() if match else ""

    @property
    def rest(self) -> str:
        """What follows the capitals."""
        return self.text[len(self.verdict) :].strip()

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON values."""
        about = {"section": self.section, "about": self.about, "key": self.key, "kind": self.kind}
        return {"verdict": self.verdict, "line": self.text, "figure": self.figure, "strength": self.strength, **about}


@dataclass(frozen=True)
class Screen:
    """The first screen.

    Attributes:
        heading: what it is about.
        causes: numbered, the first the most important.
        lists: entries by the list's name; the lists that have any.
        more: number of further causes and entries, which the page has below the fold.
        besides: what else is there: how many more, warnings and failed checks.
        nothing: what it says without a cause.
    """

    heading: str
    causes: tuple[Line, ...] = ()
    lists: dict[str, tuple[Line, ...]] = field(default_factory=dict)
    more: int = 0
    nothing: str = ""
    besides: str = ""

    @property
    def text(self) -> str:
        """The screen as plain text."""
        rows = [self.heading] if self.causes else [self.heading, self.nothing]
        for number, line in enumerate(self.causes, 1):
            rows.append(f"{number} {line.text}{f' · {line.strength}' if line.strength else ''}")
            rows += [f"    {line.figure}"] if line.figure else []
        width = max(map(len, self.lists), default=0)
        rows += [f"{name:{width}}  {' · '.join(line.text for line in lines)}" for name, lines in self.lists.items()]
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """Return the screen as JSON values."""
        lists = {name: [line.to_json() for line in lines] for name, lines in self.lists.items()}
        return {
            "heading": self.heading,
            "causes": [line.to_json() for line in self.causes],
            "lists": lists,
            "more": self.more,
            "besides": self.besides,
        }


def count_words(text: str) -> int:
    """Count what has a letter in it, between blanks."""
    return sum(any(letter.isalpha() for letter in word) for word in text.split())


def count_numbers(text: str) -> int:
    """Count numbers: digits with their sign, point and commas."""
    return len(re.findall(r"\d[\d.,]*", text))


def first_screen(heading: str, verdict: StudyVerdict, sections: Sequence[Section], relations: Relations) -> Screen:
    """Choose the lines of the first screen.

    Args:
        heading: what it is about.
        verdict: of the study.
        sections: the sections, in the order of the page.
        relations: how its statements relate.
    """
    causes = _causes(verdict, relations)
    lists = _lists(verdict, sections, relations)
    heads = [(name, lines[0]) for name, lines in reversed(lists.items())]  # reasons for caution before good news
    strong = [at for at, line in enumerate(causes[:CAUSES], 1) if line.strength == "strong" and relations.strong_first]
    before = max([BEFORE_LISTS, *strong])
    wanted: list[tuple[str, Line]] = [("", line) for line in causes[:before]]
    wanted += heads[:1] + [("", line) for line in causes[before : BEFORE_LISTS + 1]] + heads[1:]
    wanted += [("", line) for line in causes[max(before, BEFORE_LISTS + 1) : CAUSES]]
    wanted += [(name, line) for name, lines in lists.items() for line in lines[1:ENTRIES]]
    chosen: list[tuple[str, Line]] = []
    for entry in wanted:
        screen = _screen(heading, [*chosen, entry], lists, relations.nothing)
        if count_words(screen.text) <= WORDS - AROUND and count_numbers(screen.text) <= NUMBERS - NUMBERS_AROUND:
            chosen.append(entry)
    total = len(causes) + sum(map(len, lists.values()))
    screen = _screen(heading, chosen, lists, relations.nothing, total - len(chosen))
    return replace(screen, besides=_besides(screen.more, len(verdict.warnings), len(verdict.failed)))


def _besides(more: int, warnings: int, failed: int) -> str:
    counts = {"more": more, "warning": warnings, "failed check": failed}
    return ", ".join(f"{n} {of}{'s' if n > 1 and of != 'more' else ''}" for of, n in counts.items() if n)


def _screen(
    heading: str, chosen: Sequence[tuple[str, Line]], lists: dict[str, list[Line]], nothing: str, more: int = 0
) -> Screen:
    of = {name: tuple(line for list_name, line in chosen if list_name == name) for name in ("", *lists)}
    return Screen(heading, of.pop(""), {name: lines for name, lines in of.items() if lines}, more, nothing)


def _causes(verdict: StudyVerdict, relations: Relations) -> list[Line]:
    """Return the numbered lines: one for each thing that statements are about.

    An edit that changes only what other lines are about is evidence of their causes, and has none of its own.
    """
    causes = [(section, each) for section, each in verdict.ranked if each.line and not each.list]
    if relations.strong_first:
        causes.sort(key=lambda cause: cause[1].strength == "weak")
    lines: list[Line] = []
    subjects: set[str] = set()
    concepts = set[str]().union(*(each.subjects for _, each in causes if not each.changed))
    for section, statement in causes:
        told = bool(statement.subjects) and statement.subjects <= subjects
        evidence = bool(statement.changed) and statement.changed <= concepts
        if not told and not evidence and all(line.text != statement.line for line in lines):
            lines.append(_line(section, statement))
            subjects |= statement.subjects
    return lines


def _lists(verdict: StudyVerdict, sections: Sequence[Section], relations: Relations) -> dict[str, list[Line]]:
    told_of = [statement for _, statement in verdict.ranked if statement.line and not statement.list]
    edited = {
        concept for each in told_of if len(each.changed) == 1 for concept in each.changed
    }  # which of several is open
    causes = edited.union(*(statement.subjects for statement in told_of))
    entries: dict[str, dict[str, Line]] = {name: {} for name in relations.lists}
    for section, statement in verdict.ranked:
        told = bool(statement.subjects) and statement.subjects <= (edited if statement.stance == "no" else causes)
        if statement.line and statement.list and not told:
            entries[statement.list].setdefault(statement.line, _line(section, statement))
    for name, line in [*_absent(sections), *_not_asked(sections, relations)]:
        entries[name].setdefault(line.text, line)
    return {name: list(lines.values()) for name, lines in entries.items() if lines}


def _line(section: Section, statement: Statement) -> Line:
    where = section.name, statement.about, statement.key, statement.kind
    return Line(statement.line, statement.figure, statement.strength, *where)


def _absent(sections: Sequence[Section]) -> Iterator[tuple[str, Line]]:
    for section in sections:
        for check in section.checks:
            if check.absent and check.passed is not False:
                name = ABSENT if check.passed else NOT_ASKED
                yield name, Line(check.absent, section=section.name, about=check.about, key=check.key)


def _not_asked(sections: Sequence[Section], relations: Relations) -> Iterator[tuple[str, Line]]:
    for section in sections:
        if section.skipped is not None and section.name in relations.not_asked:
            yield NOT_ASKED, Line(relations.not_asked[section.name], section=section.name)
