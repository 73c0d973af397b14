"""Which Python modules a name in a file may have imported.

``module:Id`` names an environment that importing ``module`` registers, ``module:Name`` a user's own part, and importing runs code.
What somebody types is consent; what stands in a config.json that came from elsewhere is none. So modules are remembered when they
are typed, with the file that they were then: a module of the same name in another folder is another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import folders

FLAG = "--allow-import"

OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*")
"""What the name of an environment or a part in a user's own module looks like."""

_allowed: set[str] = set()
"""Packages that this process may import, wherever they are found."""


def module_of(name: str) -> str:
    """The module that is imported for an environment or a part of this name; empty where none is."""
    return name.rpartition(":")[0]


def allow(module: str) -> None:
    """The user has named this module: it, and what is in its package, may be imported from now on, by later commands too."""
    top = module.partition(".")[0]
    if not top.isidentifier():
        return
    _allowed.add(top)
    remembered, place = _remembered(), _place(top)
    if place is None or place in remembered.get(top, []):
        return
    remembered.setdefault(top, []).append(place)
    with contextlib.suppress(OSError):  # a home folder that takes nothing: the user is asked again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(remembered, indent=2) + "\n")


def take_flags(words: list[str]) -> list[str]:
    """A command line without its ``--allow-import MODULE``, of which each is consent, as is each value ``module:Name``.

    Raises:
        SettingError: the flag names no module.
    """
    rest: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        if word == "--":  # what follows is the command of a job
            return [*rest, word, *given]
        if name == FLAG and not equals:
            value = next(given, "")
        if name == FLAG:
            if not all(part.isidentifier() for part in value.split(".")):
                raise SettingError(f"{FLAG} is {value!r}; name the Python module to import, as {FLAG} my_envs.")
            allow(value)
            continue
        rest.append(word)
        if OWN.fullmatch(typed := value if equals else word):
            allow(module_of(typed))
    return rest


def check(names: Iterable[str], source: Path) -> None:
    """Check that the modules of these names, which are in the file ``source``, may be imported. Imports nothing.

    Raises:
        SettingError: nobody has said so of one.
    """
    for name in names:
        module = module_of(name)
        top = module.partition(".")[0]
        if not module or top in _allowed:
            continue
        place = _place(top)
        if place is not None and place in _remembered().get(top, []):
            continue
        raise SettingError(
            f"{source} names {name!r}, for which the Python module {module!r} would be imported "
            f"({place or 'it is not found here'}), and that runs its code. If you trust it, add {FLAG} {module}."
        )


def _place(top: str) -> str | None:
    """The file or folder that importing ``top`` would run, looked for as `rlhf_ray.data.modules` does; None where there is none."""
    found = PathFinder.find_spec(top, [*folders(), *sys.path])
    if found is None:
        return None
    return os.path.realpath(found.origin or next(iter(found.submodule_search_locations or ()), ""))


def _file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "rlhf_ray" / "imports.json"


def _remembered() -> dict[str, list[str]]:
    try:
        values = json.loads(_file().read_text())
        return {str(top): [str(place) for place in places] for top, places in values.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
