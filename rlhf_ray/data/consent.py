"""Consent to import: which Python modules a name in a file may import.

Importing runs code. ``module:Id`` imports the module that registers an environment; ``module:Name`` imports a custom part. Typing
such a name is consent; finding it in a config.json from elsewhere is not. Typed modules are remembered with the location of their
file: a module of the same name in another folder needs consent again.
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

from rlhf_ray.data import signed
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import folders
from rlhf_ray.data.places import config_folder

FLAG = "--allow-import"

_MODULE = r"\w[\w-]*(\.\w[\w-]*)*"
"""Matches what Python can import by name: the file ``25-x.py``, too."""

OWN = re.compile(rf"{_MODULE}:[A-Za-z_][\w./-]*")
"""Matches the name of an environment or part in a user's own module."""

_allowed: set[str] = set()
"""Packages that this process may import from any location."""


def module_of(name: str) -> str:
    """Return the module that this environment or part name imports; an empty string if none."""
    return name.rpartition(":")[0]


def allow(module: str) -> None:
    """Allow importing ``module`` and its package, in this process and in later commands."""
    top = module.partition(".")[0]
    if not re.fullmatch(_MODULE, top):
        return
    _allowed.add(top)
    remembered, place = _remembered(), _place(top)
    if place is None or place in remembered.get(top, []):
        return
    remembered.setdefault(top, []).append(place)
    with contextlib.suppress(OSError):  # the home folder is not writable: later commands ask again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(remembered, indent=2) + "\n")


def take_flags(words: list[str]) -> list[str]:
    """Remove ``--allow-import MODULE`` and ``--allow-pickle FOLDER`` from a command line, and allow what they name.

    Allow the module of each ``module:Name``, too.

    Args:
        words: the command line.

    Returns:
        The remaining words.

    Raises:
        SettingError: a flag's value is not a module name, or no folder.
    """
    rest: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        if word == "--":  # the rest is the command of a job
            return [*rest, word, *given]
        if name in (FLAG, signed.FLAG) and not equals:
            value = next(given, "")
        if name == signed.FLAG:
            if not value or not Path(value).is_dir():
                raise SettingError(
                    f"{signed.FLAG} is {value!r}; name the folder of the run, checkpoint or sweep whose pickles may be opened."
                )
            signed.trust(value)
            continue
        if name == FLAG:
            if not re.fullmatch(_MODULE, value):
                raise SettingError(
                    f"{FLAG} is {value!r}; name the Python module to import, for example {FLAG} my_envs."
                )
            allow(value)
            continue
        rest.append(word)
        for typed in (value if equals else word).split("+"):  # parts may be joined, as in my_parts:Mine+k_center
            if OWN.fullmatch(typed):
                allow(module_of(typed))
    return rest


def check(names: Iterable[str], source: Path) -> None:
    """Check that the user has allowed the modules of these names from the file ``source``. Imports nothing.

    Raises:
        SettingError: a module is not allowed.
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
            f"{source} names {name!r}, which imports the Python module {module!r} ({place or 'not found here'}) and runs its code. "
            f"If you trust it, add {FLAG} {module}."
        )


def _place(top: str) -> str | None:
    """Return the file or folder that importing ``top`` runs, found like `rlhf_ray.data.modules` does; None if missing."""
    spec = PathFinder.find_spec(top, [*folders(), *sys.path])
    if spec is None:
        return None
    return os.path.realpath(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))


def _file() -> Path:
    return config_folder() / "imports.json"


def _remembered() -> dict[str, list[str]]:
    try:
        values = json.loads(_file().read_text())
        return {str(top): [str(place) for place in places] for top, places in values.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
