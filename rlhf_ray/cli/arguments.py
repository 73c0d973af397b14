"""Parse command-line arguments into a dataclass. Invalid values give a one-line message."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rlhf_ray.data.errors import SettingError

ANSI_STYLE = re.compile(r"\x1b\[[\d;]*m")
"""A terminal's colours."""


def parse_arguments(kind: Any, program: str, words: Sequence[str], default: Any = None) -> Any:
    """Parse ``words`` into an instance of ``kind``; ``--help`` prints all options and exits.

    Args:
        kind: a dataclass; each field is an option.
        program: the program name shown in the help.
        words: the arguments.
        default: an instance with the default values.

    Raises:
        SettingError: an option is unknown or missing, or has an invalid value.
        SystemExit: ``--help`` was given.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(Annotated[kind, tyro.conf.arg(name="")], prog=program, args=list(words), **options)
    except SystemExit as end:
        # tyro repeats a dataclass's own error inside a box; raise that error instead.
        error: BaseException | None = end
        while error is not None:
            if isinstance(error, SettingError):
                raise error from None
            error = error.__cause__ or error.__context__
        if not (box := printed.getvalue()):
            raise
        raise SettingError(_in_one_line(box, program)) from None


def _in_one_line(box: str, program: str) -> str:
    """Return what tyro prints as a box: an error, then hints, divided by lines."""
    parts: list[list[str]] = [[]]
    for row in ANSI_STYLE.sub("", box).splitlines()[1:]:
        row = row[2:].rstrip("│ ")
        if row.strip("─╯- "):
            parts[-1].append(row)
        else:
            parts.append([])
    error, *hints = filter(None, parts)
    said = [" ".join(row.strip() for row in error).removesuffix(" (required)").rstrip(".") + "."]
    for title, *rows in hints:
        options = [row.strip() for row in rows if re.match(r" {4}-", row)]
        if options:
            what = "Expected" if title.startswith("Argument") else title.rstrip(":")
            said.append(f"{what} {', '.join(options)}.")
    return " ".join([*said, f"`{program} --help` lists the options."])
