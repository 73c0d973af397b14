"""What `--help` prints: a command's usage, what it does, and its options with their defaults, wrapped to the terminal."""

from __future__ import annotations

import inspect
import itertools
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_ray.cli.options import Option

WIDEST = 100
"""Longer lines are harder to read."""
NARROWEST = 40
NARROW_COLUMN = 32
"""Width below which a table's right column moves below the left one."""


@dataclass(frozen=True)
class Usage:
    """The head of a command's help."""

    forms: tuple[str, ...]
    """The forms of the command, such as ``rlhf-ray train PRESET [--SETTING VALUE …]``."""
    rows: tuple[tuple[str, str], ...] = ()
    """A table: what one may give, and what it means."""
    text: str = ""
    """Paragraphs, divided by empty lines."""

    def shown(self, width: int | None = None) -> str:
        """The text, wrapped to ``width`` columns; None for the terminal's."""
        columns = width or terminal_width()
        forms = [
            _wrap(form, columns, "usage: " if not number else " " * 7, " " * 9)
            for number, form in enumerate(self.forms)
        ]
        parts = ["\n".join(forms), table(self.rows, columns) if self.rows else "", paragraphs(self.text, columns)]
        return "\n\n".join(filter(None, parts))


def asks_help(words: Sequence[str]) -> bool:
    """Whether ``words`` ask for the help."""
    return "-h" in words or "--help" in words


def terminal_width() -> int:
    """Columns of the terminal (or in COLUMNS; 80 without a terminal), within what is readable."""
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size((80, 24)).columns))


def help_text(
    kind: type, options: Sequence[Option], program: str, usage: Usage | None, width: int | None = None
) -> str:
    """Return a command's help.

    Args:
        kind: the command's dataclass, whose docstring says what it does.
        options: its options.
        program: the command, such as ``rlhf-ray evaluate``.
        usage: the head; None to make one from the options.
        width: columns; None for the terminal's.
    """
    columns = width or terminal_width()
    parts = [
        (usage or Usage((_form(program, options),))).shown(columns),
        paragraphs(inspect.getdoc(kind) or "", columns),
    ]
    if arguments := [option for option in options if option.positional]:
        parts.append(table([(option.form, option.said) for option in arguments], columns))
    others = [option for option in options if not option.positional]
    for (group, about), of in itertools.groupby(others, key=lambda option: (option.group, option.about)):
        entries = [_entry(option, columns) for option in of]
        parts.append("\n".join([_wrap(f"{group}: {about}" if group else "Options:", columns, "", "  "), *entries]))
    return "\n\n".join(parts)


def table(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Return a table of two columns; the right one is wrapped, or moves below the left one where there is little room."""
    left = max(len(name) for name, _ in rows) + 4
    lines = []
    for name, said in rows:
        if width - left < NARROW_COLUMN:
            lines += [_wrap(name, width, "  ", "    "), _wrap(said, width, " " * 6, " " * 6)]
        else:
            lines.append(_wrap(said, width, f"  {name}".ljust(left), " " * left))
    return "\n".join(lines)


def paragraphs(text: str, width: int) -> str:
    """Return ``text`` with each of its paragraphs wrapped."""
    return "\n\n".join(_wrap(" ".join(part.split()), width, "", "") for part in text.strip().split("\n\n"))


def _form(program: str, options: Sequence[Option]) -> str:
    """The usage line: positional and required arguments, and the others if they are few."""
    given = [option.form if option.required else f"[{option.form}]" for option in options if option.positional]
    given += [option.form for option in options if option.required and not option.positional]
    others = [f"[{option.form}]" for option in options if not option.required and not option.positional]
    return " ".join([program, *given, *(others if len(others) <= 3 else ["[--OPTION VALUE …]"])])


def _entry(option: Option, width: int) -> str:
    """One option: its form, and below it what it means."""
    notes = ["required"] if option.required and not option.positional else []
    notes += [f"default: {option.given_default}"] if option.given_default else []
    said = " ".join([option.said, *(f"({note})" for note in notes)])
    return "\n".join([_wrap(option.form, width, "  ", "    "), _wrap(said, width, " " * 6, " " * 6)])


def _wrap(text: str, width: int, first: str, later: str) -> str:
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
