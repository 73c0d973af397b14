"""Parse command-line arguments into a dataclass. Invalid values give a one-line message."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlhf_ray.cli.help import Usage, asks_help, help_text
from rlhf_ray.cli.options import Option, options
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nearest import did_you_mean
from rlhf_ray.data.whole import is_too_large, whole_number

ANSI_STYLE = re.compile(r"\x1b\[[\d;]*m")
"""A terminal's colours."""
OF_A_VALUE = re.compile(r"(?:Error parsing|for argument) '?(--[\w.-]+)")
"""How tyro begins to say that an option's value is none, and which one's."""
KINDS_IN_WORDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "TEXT": "text",
    "PATH": "a path",
    "FLOAT FLOAT": "two numbers",
}
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


def parse_arguments(
    kind: Any, program: str, words: Sequence[str], default: Any = None, usage: Usage | None = None
) -> Any:
    """Parse ``words`` into an instance of ``kind``; ``--help`` prints all options and exits.

    Args:
        kind: a dataclass; each field is an option.
        program: the program name shown in the help.
        words: the arguments.
        default: an instance with the default values.
        usage: the head of the help; None to make one from the options.

    Raises:
        SettingError: an option is unknown or missing, or has an invalid value.
        SystemExit: ``--help`` was given.
    """
    known = options(kind, default)
    if asks_help(words):
        print(help_text(kind, known, program, usage))
        raise SystemExit(0)
    _check_known(words, known, program)
    defaults: dict[str, Any] = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                Annotated[kind, tyro.conf.arg(name="")],
                prog=program,
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
        raise SettingError(_unfit_value(box, words, known) or _in_one_line(box, program)) from None


def spelled_out(words: Sequence[str], short: str, setting: str) -> list[str]:
    """Return ``words`` in which the setting that an option is short for is given, too: settings are checked together."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{short}=")]
    values += [value for word, value in pairwise(words) if word == short and not value.startswith("-")]
    return [*words, f"{setting}={values[-1]}"] if values else list(words)


def need_first(kind: Any, program: str, words: Sequence[str], usage: Usage) -> None:
    """Show the help, or refuse a command line that doesn't begin with what the command is about.

    Raises:
        SettingError: it doesn't.
        SystemExit: the help was asked for.
    """
    if asks_help(words):
        parse_arguments(kind, program, ["--help"], usage=usage)
    command, _, first = program.rpartition(" ")
    given = f"{words[0]} is given before {first}" if words else f"`{command}` needs {first}"
    raise SettingError(f"{given}: {usage.forms[0]}. `{command} --help` explains it.")


def _check_known(words: Sequence[str], known: Sequence[Option], program: str) -> None:
    """Refuse options that do not exist, and say which are near."""
    names = [option.name for option in known if not option.positional]
    flags = {*names, *(option.negative for option in known if option.negative)}
    for word in words:
        given, _, _ = word.partition("=")
        if not given.startswith("--") or given.replace("_", "-") in flags or given == "--":
            continue
        near = did_you_mean(given.removeprefix("--"), [name.removeprefix("--") for name in sorted(flags)], "--{}")
        raise SettingError(f"{given} is no option of `{program}`; {near or f'`{program} --help` lists them.'}")


def _unfit_value(box: str, words: Sequence[str], known: Sequence[Option]) -> str | None:
    """Return what is wrong with an option's value; None if tyro says in its box that something else is."""
    found = OF_A_VALUE.search(" ".join(ANSI_STYLE.sub("", box).replace("│", "").split()))
    name = found and found.group(1).rstrip(".")
    option = next((option for option in known if option.name == name), None)
    if option is None:
        return None
    values: list[str] = []
    current = ""
    for word in words:
        given, is_one, value = word.partition("=")
        if given.startswith("--"):
            current = given.replace("_", "-")
            values = ([value] if is_one else []) if current == name else values
        elif current == name:
            values.append(word)
    wanted = _in_words(option.takes) + " of at most 2**63 - 1" * any(map(is_too_large, values))
    return (
        f"{name} is {' '.join(values)!r}; it must be {wanted}."
        if values
        else f"{name} has no value; it takes {wanted}."
    )


def _in_words(takes: str) -> str:
    """Return `Option.takes` in words: ``INT|auto`` is a whole number or auto."""
    if takes.endswith(" …"):
        return f"{KINDS_IN_WORDS.get(takes[:-2], takes[:-2])}, or several"
    *most, last = (KINDS_IN_WORDS.get(one, one) for one in takes.split("|"))
    return f"{', '.join(most)} or {last}" if most else last


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
        listed = [row.strip() for row in rows if re.match(r" {4}-", row)]
        if listed:
            what = "Expected" if title.startswith("Argument") else title.rstrip(":")
            said.append(f"{what} {', '.join(listed)}.")
    return " ".join([*said, f"`{program} --help` lists the options."])
