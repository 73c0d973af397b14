"""The head of a command's help: its forms, a table of what one may give, and a text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
"""Columns; the terminal's own width is tyro's business, which prints the options."""


@dataclass(frozen=True)
class Usage:
    """The head of a command's help."""

    forms: tuple[str, ...]
    """The forms of the command, such as ``rlhf-ray train PRESET [--SETTING VALUE …]``."""
    rows: tuple[tuple[str, str], ...] = ()
    """A table: what one may give, and what it means."""
    text: str = ""
    """Paragraphs, divided by empty lines."""

    def shown(self) -> str:
        """The text, in `WIDTH` columns."""
        forms = [_wrap(form, " " * 7 if number else "usage: ", " " * 9) for number, form in enumerate(self.forms)]
        rows = [f"  {name}\n{_wrap(said, ' ' * 6, ' ' * 6)}" for name, said in self.rows]
        paragraphs = [_wrap(" ".join(part.split())) for part in self.text.split("\n\n")]
        return "\n\n".join(filter(None, ["\n".join(forms), "\n".join(rows), *paragraphs]))


def asks_help(words: Sequence[str]) -> bool:
    """Whether ``words`` ask for the help."""
    return "-h" in words or "--help" in words


def _wrap(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
