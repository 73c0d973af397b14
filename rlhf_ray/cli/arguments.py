"""The words of a command line, read into a dataclass. What is wrong with a value is one line."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rlhf_ray.data.errors import SettingError


def parse_arguments(kind: Any, program: str, words: Sequence[str], default: Any = None) -> Any:
    """An instance of ``kind`` with the options in ``words``; with ``--help``, prints them all and ends.

    Args:
        kind: a dataclass: each field is an option.
        program: its name, for the help.
        words: of the command line.
        default: the instance to begin with.

    Raises:
        SettingError: an option has a value that cannot work.
        SystemExit: an option is unknown or no value of its type, which is printed; or help was asked for.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(Annotated[kind, tyro.conf.arg(name="")], prog=program, args=list(words), **options)
    except SystemExit as end:
        # tyro draws a box around what a dataclass says of its values, and says it more than once.
        error: BaseException | None = end
        while error is not None:
            if isinstance(error, SettingError):
                raise error from None
            error = error.__cause__ or error.__context__
        print(printed.getvalue(), end="", file=sys.stderr)
        raise
