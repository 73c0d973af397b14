"""Users' own modules: where they are looked for, and that processes elsewhere find them too."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

FOLDERS = "RLHF_RAY_MODULES"
"""Environment variable with the folders in which modules are looked for besides Python's own; Ray's workers get it too."""


class NoModuleError(ImportError):
    """There is no module of this name where modules are looked for."""


def look_in(folder: Path | str) -> None:
    """From now on, look for modules in ``folder`` first, in this process and in those that it starts."""
    others = [other for other in folders() if other != str(folder)]
    os.environ[FOLDERS] = os.pathsep.join([str(folder), *others])


def folders() -> list[str]:
    """The folders in which modules are looked for before Python's own, the first one first."""
    return [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def append_to_path() -> None:
    """From now on, Python itself looks in the `folders` too, in this process, where it finds a module nowhere else."""
    sys.path.extend(folder for folder in folders() if folder not in sys.path)


def import_module(module: str) -> ModuleType:
    """Import ``module``, as `python -m` in one of the `folders` would find it.

    Raises:
        NoModuleError: there is none.
        Exception: whatever it raises.
    """
    # At the front for this import alone: a file of the user's must not stand in for what somebody else imports later on.
    sys.path[:0] = folders()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # The module is there, and lacks a dependency of its own: that error says more than ours.
        places = ", ".join(folders()) or "the current directory"
        raise NoModuleError(
            f"there is no module {error.name!r} to import in {places}, nor among what is installed. Run from the folder that it "
            "lies in, or name that folder in PYTHONPATH"
        ) from error
    finally:
        for folder in folders():
            sys.path.remove(folder)
        append_to_path()  # for good: what the module imports later, when it makes an environment say, may lie beside it


def found_in(module: str) -> str | None:
    """The folder, of those that were looked in, where ``module`` was found; None for what is installed."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    places = [Path(file).parent] if file else []
    places += [Path(place).parent for place in getattr(top, "__path__", [])]
    return next((folder for folder in folders() if Path(folder) in places), None)


def found_in_all(modules: Iterable[str]) -> list[str]:
    """The folders where these modules were found, of those that were looked in."""
    return sorted({folder for module in modules if (folder := found_in(module)) is not None})


def look_in_all(found: str | list[str] | None) -> None:
    """Look in the folders that `found_in_all` gave, as files keep them; files of earlier versions name one or none."""
    for folder in [found] if isinstance(found, str) else found or []:
        look_in(folder)
