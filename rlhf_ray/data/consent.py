"""Consent to import: which Python modules a name in a file may import.

Importing runs code. ``module:Id`` imports the module that registers an environment; ``module:Name`` imports a custom part. Typing
such a name is consent; finding it in a config.json from elsewhere is not. Typed modules are remembered with the location of their
file: a module of the same name in another folder needs consent again. A file may also say in which folders its modules lie: such a
folder is searched only for a module that may be imported from there.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from rlhf_ray.data import signed
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import folders, look_in
from rlhf_ray.data.places import config_folder

FLAG = "--allow-import"

REMEMBERED = "imports.json"
"""Where in the user's configuration folder typed modules are remembered."""

_MODULE = r"\w[\w-]*(\.\w[\w-]*)*"
"""Matches what Python can import by name: the file ``25-x.py``, too."""

OWN = re.compile(rf"{_MODULE}:[A-Za-z_][\w./-]*")
"""Matches the name of an environment or part in a user's own module."""

_allowed: set[str] = set()
"""Packages that this process may import from any location, and the locations that it may import."""


def module_of(name: str) -> str:
    """Return the module that this environment or part name imports; an empty string if none."""
    return name.rpartition(":")[0]


def allow(module: str, anywhere: bool = False) -> None:
    """Allow importing ``module`` and its package, in this process and in later commands.

    Args:
        module: the module.
        anywhere: whether this process may import it from elsewhere than from where it lies now, if it does: where a file says.
    """
    top = module.partition(".")[0]
    if re.fullmatch(_MODULE, top):
        place = _place(top)
        _allowed.add(top if anywhere or place is None else place)
        _remember(top, place)


def _remember(top: str, place: str | None) -> None:
    """Allow later commands to import ``top`` from ``place``."""
    remembered = _remembered()
    if place is None or place in remembered.get(top, []):
        return
    remembered.setdefault(top, []).append(place)
    with contextlib.suppress(OSError):  # the home folder is not writable: later commands ask again
        file = config_folder() / REMEMBERED
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(remembered, indent=2) + "\n")


def take_flags(words: list[str]) -> list[str]:
    """Allow what ``--allow-import MODULE``, ``--allow-pickle FOLDER`` and ``module:Name`` name; return the line without the flags.

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
                what = "the folder of the run, checkpoint or sweep whose pickles may be opened"
                raise SettingError(f"{name} is {value!r}; name {what}.")
            signed.trust(value)
        elif name == FLAG:
            if not re.fullmatch(_MODULE, value):
                raise SettingError(
                    f"{name} is {value!r}; name the Python module to import, for example {name} my_envs."
                )
            allow(value, anywhere=True)
        else:
            rest.append(word)
            for typed in (value if equals else word).split("+"):  # parts may be joined, as in my_parts:Mine+k_center
                if OWN.fullmatch(typed):
                    allow(module_of(typed))
    return rest


def check(names: Iterable[str], source: Path, found: object = ()) -> None:
    """Check that the user has allowed the modules of these names from the file ``source``. Imports nothing.

    Args:
        names: of parts and environments.
        source: the file.
        found: the folders where a file says that the modules lie, as it says so: `rlhf_ray.data.modules.found_in_all`. Those where
            one of them does are searched from now on.

    Raises:
        SettingError: a module is not allowed.
    """
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    theirs = [str(Path(folder).resolve()) for folder in listed if isinstance(folder, str) and folder]
    needed: set[str] = set()
    for name in names:
        module = module_of(name)
        top = module.partition(".")[0]
        if not module or top == "__main__":  # the program that runs
            continue
        place = _place(top, theirs)
        if top in _allowed:
            _remember(top, place)
        elif place not in _allowed and place not in _remembered().get(top, []):
            raise SettingError(
                f"{source} names {name!r}, which imports the Python module {module!r} ({place or 'not found here'}) and runs its "
                f"code. If you trust it, add {FLAG} {module} (in Python, call rlhf_ray.data.consent.allow first)."
            )
        if place is not None:
            needed.add(_folder_of(place, top))
    for folder in reversed([folder for folder in theirs if folder in needed]):  # the first one stays first
        look_in(folder)


def _place(top: str, first: Sequence[str] = ()) -> str | None:
    """Return the file or folder that importing ``top`` runs, found like `rlhf_ray.data.modules` does; None if missing.

    The folder that is searched is resolved; a link in it is a file there, not the one that it leads to.
    """
    if (spec := PathFinder.find_spec(top, [*first, *folders(), *sys.path])) is None:
        return None
    place = Path(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
    folder = _folder_of(place, top)
    return str(Path(folder).resolve() / place.relative_to(folder))


def _folder_of(place: Path | str, top: str) -> str:
    """Return the searched folder where the package or module ``top`` lies at ``place``."""
    within = Path(place).parent
    return str(within.parent if within.name == top and Path(place).name.startswith("__init__.") else within)


def _remembered() -> dict[str, list[str]]:
    try:
        values = json.loads((config_folder() / REMEMBERED).read_text())
        return {str(top): [str(place) for place in places] for top, places in values.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
