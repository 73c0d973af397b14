"""What a study says: the sections' statements and checks, put together so that no two of them disagree."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlhf_ray.study.section import Check, Section, Statement

MOST = 6
"""Statements of one kind on the page; the JSON has all."""
STRENGTHS = ("strong", "moderate", "weak", "")


@dataclass(frozen=True)
class Told:
    """A statement or a check, and the section it comes from.

    Attributes:
        text: the sentence.
        section, title: name and title of the section.
        kind: see `Statement`; "check" for checks.
        about, key, stance: see `Statement`.
        because: the statement that explains it, if one does.
    """

    text: str
    section: str
    title: str
    kind: str = ""
    about: str = ""
    key: str = ""
    stance: str = ""
    because: str = ""


@dataclass(frozen=True)
class Relations:
    """How the statements of a study relate, by their keys (a TOML file beside the study's report).

    Attributes:
        first: keys of statements, in groups: those of an earlier group come first on the first screen, and win where two disagree.
        explains: keys of the statements and checks that a statement explains: they are set aside where it holds. A pattern
            such as ``"overview.*"`` stands for several keys; ``"…@"`` explains only what is about the same thing.
        lists: lists of the first screen, in their order.
        not_asked: what a skipped step leaves open, in a few words, by the step's name.
        nothing: what the first screen says without a cause.
        strong_first: whether weak causes come after all others on the first screen, and strong ones before its lists.
    """

    first: tuple[tuple[str, ...], ...] = ()
    explains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    not_asked: Mapping[str, str] = field(default_factory=dict)
    nothing: str = ""
    strong_first: bool = False

    @classmethod
    def read(cls, path: Path) -> Relations:
        """Read the file."""
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        explains = {key: tuple(patterns) for key, patterns in values["explains"].items()}
        first, lists = tuple(map(tuple, values["first"])), tuple(values["lists"])
        strong_first = bool(values.get("strong_first", False))
        return cls(first, explains, lists, values["not_asked"], values["nothing"], strong_first)

    def rank(self, statement: Statement) -> tuple[int, int, float]:
        """Return what statements are sorted by, the most important first."""
        groups = (
            number for number, keys in enumerate(self.first) if any(fnmatchcase(statement.key, key) for key in keys)
        )
        return next(groups, len(self.first)), STRENGTHS.index(statement.strength), -statement.weight

    def explained(self, by: Statement, item: Statement | Check) -> bool:
        """Return whether ``by`` explains ``item``, or says the opposite of it."""
        shared = by.subjects & {subject for subject in item.about.split("; ") if subject}
        stance = item.stance if isinstance(item, Statement) else ("yes" if item.passed else "no")
        if shared and by.stance and stance and by.stance != stance:
            return True
        patterns = [pattern for pattern in self.explains.get(by.key, ()) if shared or not pattern.endswith("@")]
        return any(fnmatchcase(item.key, pattern.removesuffix("@")) for pattern in patterns)


@dataclass(frozen=True)
class StudyVerdict:
    """What the page says.

    Attributes:
        statements: what was found, by kind (see `rlhf_ray.study.section.Statement`), the strongest first.
        warnings: reasons to distrust the subject or a step.
        failed: failed checks.
        unchecked: checks that could not be made.
        explained: statements and failed checks that another statement explains; they are in none of the other lists.
        ranked: the statements that hold, each with its section, the most important first.
    """

    statements: dict[str, tuple[Told, ...]]
    warnings: tuple[Told, ...]
    failed: tuple[Told, ...]
    unchecked: tuple[Told, ...]
    explained: tuple[Told, ...] = ()
    ranked: tuple[tuple[Section, Statement], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        lists = self.statements | {"warnings": self.warnings, "failed": self.failed, "unchecked": self.unchecked}
        return {kind: [vars(told) for told in tolds] for kind, tolds in (lists | {"explained": self.explained}).items()}

    def because(self, section: str, text: str) -> str:
        """Return the statement that explains the one of this section and text; empty if none does."""
        return next((told.because for told in self.explained if (told.section, told.text) == (section, text)), "")


def reconcile(
    sections: Sequence[Section], kinds: Sequence[str], first: Sequence[str] = (), relations: Relations | None = None
) -> StudyVerdict:
    """Put the sections' statements and checks together; set aside what another statement explains.

    Args:
        sections: the sections, in the order of the page.
        kinds: kinds of statements, besides warnings.
        first: sections whose statements come before the others' in the lists, by name.
        relations: how the statements relate.
    """
    relations = Relations() if relations is None else relations
    all_of_them = [(section, statement) for section in sections for statement in section.statements]
    held: list[tuple[Section, Statement]] = []
    explained: list[Told] = []
    for section, statement in sorted(all_of_them, key=lambda pair: relations.rank(pair[1])):
        by = next((other for _, other in held if relations.explained(other, statement)), None)
        if by is None:
            held.append((section, statement))
        else:
            explained.append(_told(section, statement, by))
    failed: list[Told] = []
    aside: list[Told] = []
    for section, check in _checks(sections, False):
        by = next((other for _, other in held if relations.explained(other, check)), None)
        (failed if by is None else aside).append(_checked(section, check, by))
    ordered = sorted(sections, key=lambda section: first.index(section.name) if section.name in first else len(first))
    return StudyVerdict(
        {kind: _taking_turns(ordered, held, kind) for kind in kinds},
        _taking_turns(sections, held, "warning"),
        tuple(failed),
        tuple(_checked(section, check) for section, check in _checks(sections, None)),
        (*explained, *aside),
        tuple(held),
    )


def _told(section: Section, statement: Statement, by: Statement | None = None) -> Told:
    about = statement.kind, statement.about, statement.key, statement.stance
    return Told(statement.text, section.name, section.title, *about, by.text if by else "")


def _checked(section: Section, check: Check, by: Statement | None = None) -> Told:
    text = f"{check.name}: {check.says}" if check.says else check.name
    stance = "" if check.passed is None else "yes" if check.passed else "no"
    return Told(text, section.name, section.title, "check", check.about, check.key, stance, by.text if by else "")


def _taking_turns(
    sections: Sequence[Section], held: Sequence[tuple[Section, Statement]], kind: str
) -> tuple[Told, ...]:
    """Return the statements of a kind. The sections take turns, each with its weightiest first: no section drowns the others.

    What several sections say is the first one's.
    """
    turns = []
    for place, section in enumerate(sections):
        own = [statement for of, statement in held if of is section and statement.kind == kind]
        ranked = sorted(own, key=lambda statement: -statement.weight)
        unique = list({statement.text: statement for statement in ranked}.values())
        turns += [(turn, place, _told(section, statement)) for turn, statement in enumerate(unique)]
    once: dict[str, Told] = {}
    for _, _, told in sorted(turns, key=lambda entry: entry[:2]):
        once.setdefault(told.text, told)
    return tuple(once.values())


def _checks(sections: Sequence[Section], passed: bool | None) -> Iterator[tuple[Section, Check]]:
    """Return the checks that failed or could not be made (None), without those that a statement already tells."""
    warned = {statement.text for section in sections for statement in section.statements}
    for section in sections:
        yield from ((section, check) for check in section.checks if check.passed is passed and check.says not in warned)
