"""Parse command-line arguments into a dataclass. Invalid values give a one-line message."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from rlhf_ray.data.errors import SettingError


def parse_arguments(kind: Any, program: str, words: Sequence[str], default: Any = None) -> Any:
    """Parse ``words`` into an instance of ``kind``; ``--help`` prints all options and exits.

    Args:
        kind: a dataclass; each field is an option.
        program: the program name shown in the help.
        words: the arguments.
        default: an instance with the default values.

    Raises:
        SettingError: an option has an invalid value.
        SystemExit: an option is unknown or its value has the wrong type (printed), or ``--help`` was given.
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
        print(printed.getvalue(), end="", file=sys.stderr)
        raise
