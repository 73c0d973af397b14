"""Parse command-line arguments into a dataclass. Invalid values give a one-line message."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.checks import whole_number

ANSI_STYLE = re.compile(r"\x1b\[[\d;]*m")
"""A terminal's colours."""
NUMBERS = ConstructorRegistry()
"""Whole numbers may be written 1e5."""


@NUMBERS.primitive_rule
def _whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def asks_help(words: Sequence[str]) -> bool:
    """Whether ``words`` ask for the help."""
    return "-h" in words or "--help" in words


def parse_arguments(kind: Any, program: str, words: Sequence[str], default: Any = None, about: str = "") -> Any:
    """Parse ``words`` into an instance of the dataclass ``kind``; ``--help`` prints all options, and ``about``, and exits.

    Raises:
        SettingError: an option is unknown or missing, or has an invalid value.
        SystemExit: ``--help`` was given.
    """
    about = f"{inspect.getdoc(kind) or ''} {about}".strip()
    defaults: dict[str, Any] = {} if default is None else {"default": default}
    printed = io.StringIO()
    if asks_help(words):
        words = ["--help"]
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                Annotated[kind, tyro.conf.arg(name="")],
                prog=program,
                description=about,
                args=list(words),
                registry=NUMBERS,
                config=(tyro.conf.PositionalMetavarFromFieldName,),
                **defaults,
            )
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


def spelled_out(words: Sequence[str], short: str, setting: str) -> list[str]:
    """Return ``words`` in which the setting that an option is short for is given, too: settings are checked together."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{short}=")]
    values += [value for word, value in pairwise(words) if word == short and not value.startswith("-")]
    return [*words, f"{setting}={values[-1]}"] if values else list(words)


def _in_one_line(box: str, program: str) -> str:
    """Return what tyro prints as a box: an error, then hints, divided by lines. Of hints, the options that they name."""
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
        if named := [row.strip() for row in rows if re.match(r" {4}-", row)]:
            said.append(f"{'Expected' if title.startswith('Argument') else title.rstrip(':')} {', '.join(named)}.")
    return " ".join([*said, f"`{program} --help` lists the options."])
