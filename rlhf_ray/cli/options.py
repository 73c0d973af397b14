"""The options of a command, from its dataclass: names, what each takes, its default, and its docstring."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

POSITIONAL = tyro.conf.Positional[int].__metadata__[0]  # type: ignore[attr-defined]
"""What marks a field as a positional argument."""
KINDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "True|False"}


@dataclass(frozen=True)
class Option:
    """One option or positional argument of a command."""

    name: str
    """As given: ``--ppo.gamma``; in capitals for a positional argument: ``RUN``."""
    takes: str
    """The value's form, such as ``INT|auto``. Empty for a flag."""
    said: str
    """The docstring, as one paragraph."""
    default: Any
    """The default; `dataclasses.MISSING` if the option is required."""
    group: str
    """The prefix of the option's group, such as ``ppo``; empty for the command's own."""
    about: str
    """What the group is, in a sentence."""
    positional: bool
    negative: str = ""
    """The opposite of a flag, such as ``--no-json``."""

    @property
    def form(self) -> str:
        """The option as the help shows it: ``--episodes INT``; ``--follow, --no-follow``."""
        if self.positional:
            return f"{self.name} …" if self.takes.endswith("…") else self.name
        if self.negative:
            return f"{self.name}, {self.negative}" if self.default is True else self.name
        return f"{self.name} {self.takes}"

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def given_default(self) -> str:
        """The default as one would give it; empty if there is nothing to say (none, an unset flag, or the docstring says it)."""
        if self.required or self.default is False or self.default == ():
            return ""
        if self.default is None:
            return "None" if self.takes.endswith("None") else ""
        return " ".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)


def options(kind: type, default: Any = None) -> list[Option]:
    """Return the options of the dataclass ``kind`` in the order of its fields, those of nested groups last.

    Args:
        kind: a dataclass, whose fields may be dataclasses.
        default: an instance with the default values; None for those of the class.
    """
    found = list(_options(kind, default, "", ""))
    return sorted(found, key=lambda option: (bool(option.group), not option.positional and not option.group))


def _options(kind: type, default: Any, prefix: str, about: str) -> Iterator[Option]:
    hints, said = get_type_hints(kind, include_extras=True), documented(kind)
    for field in dataclasses.fields(kind):
        of, marks = _unwrapped(hints[field.name])
        value = getattr(default, field.name) if default is not None else _own_default(field)
        if isinstance(of, type) and dataclasses.is_dataclass(of):
            nameless = any(getattr(mark, "name", None) == "" for mark in marks)
            inner = prefix if nameless else f"{prefix}{field.name}."
            what = (
                about if nameless else said.get(field.name) or " ".join((of.__doc__ or "").partition("\n\n")[0].split())
            )
            yield from _options(of, None if value is dataclasses.MISSING else value, inner, what)
            continue
        positional, words = POSITIONAL in marks, f"{prefix}{field.name}".replace("_", "-")
        before, _, last = words.rpartition(".")
        flag, text = of is bool and not positional, said.get(field.name, "")
        yield Option(
            field.name.upper() if positional else f"--{words}",
            "" if flag else _takes(of, "None" in text),
            text,
            value,
            prefix.rstrip(".").replace("_", "-"),
            about,
            positional,
            f"--{before}{'.' if before else ''}no-{last}" if flag else "",
        )


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type in an ``Annotated``, and what it is annotated with."""
    marks = getattr(hint, "__metadata__", ())
    return (hint.__origin__, marks) if marks else (hint, ())


def _own_default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _takes(kind: Any, none: bool) -> str:
    """The form of a value of type ``kind``; ``none``: whether None is one to give."""
    if get_origin(kind) in (Union, UnionType):
        parts = [_takes(part, none) for part in get_args(kind) if part is not NoneType]
        return "|".join([*parts, *(["None"] if none and NoneType in get_args(kind) else [])])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        many = inner[-1] is Ellipsis
        return f"{_takes(inner[0], none)} …" if many else " ".join(_takes(part, none) for part in inner)
    return KINDS.get(kind, "TEXT")


@functools.cache
def documented(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass, those of its bases included, each as one paragraph."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (of,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(of, ast.ClassDef)
        for line, after in zip(of.body, of.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[line.target.id] = " ".join(text.value.split())
    return found
