"""Import of users' own modules, from the same folders in all processes of a run."""

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from rlhf_ray.data.defaults import making

FOLDERS = "RLHF_RAY_MODULES"
"""Environment variable with the folders to search before Python's own path; Ray's workers inherit it."""


class NoModuleError(ImportError):
    """No module of this name exists in the searched folders."""


def look_in(folder: Path | str) -> None:
    """Search ``folder`` for modules first, in this process and in those it starts."""
    others = [other for other in folders() if other != str(folder)]
    os.environ[FOLDERS] = os.pathsep.join([str(folder), *others])


def folders() -> list[str]:
    """Return the folders to search before Python's own path, in search order."""
    return [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def append_to_path() -> None:
    """Append the `folders` to this process's ``sys.path``, after everything else."""
    sys.path.extend(folder for folder in folders() if folder not in sys.path)


@making
def import_module(module: str) -> ModuleType:
    """Import ``module`` as `python -m` in one of the `folders` would find it.

    Raises:
        NoModuleError: there is no such module.
        Exception: the module itself raised.
    """
    # First in the path for this import only: a user's file must not shadow modules that other code imports later.
    sys.path[:0] = folders()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists and one of its dependencies is missing: the original error is clearer
        places = ", ".join(folders()) or "the current directory"
        raise NoModuleError(
            f"there is no module {error.name!r} in {places}, nor among the installed packages. Run from the folder that contains "
            "it, or add that folder to PYTHONPATH"
        ) from error
    finally:
        for folder in folders():
            sys.path.remove(folder)
        append_to_path()  # for imports that the module makes later, for example when it builds an environment


def found_in_all(modules: Iterable[str]) -> list[str]:
    """Return the searched folders where these modules were found, sorted; of installed modules none."""
    found = set()
    for top in (sys.modules.get(module.partition(".")[0]) for module in modules):
        file = getattr(top, "__file__", None)
        places = [Path(file).parent] if file else []
        places += [Path(place).parent for place in getattr(top, "__path__", [])]
        found.update([folder for folder in folders() if Path(folder) in places][:1])
    return sorted(found)
