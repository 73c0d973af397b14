"""The modules in which users register their environments: where they are looked for, and that processes elsewhere find them too."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from rlhf_ray.envs.checked import RAISED, fault

FOLDERS = "RLHF_RAY_MODULES"
"""Environment variable with the folders in which modules are looked for besides Python's own; Ray's workers get it too."""


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


def import_module(module: str, environment: str) -> None:
    """Import ``module``, as `python -m` in one of the `folders` would find it.

    Raises:
        ModuleNotFoundError: it is there and lacks a module of somebody else.
        ValueError: there is no such module.
        FaultyEnvironmentError: it raises something else.
    """
    # At the front for this import alone: a file of the user's must not stand in for what somebody else imports later on.
    sys.path[:0] = folders()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # The module is there, and lacks a dependency of its own: that error says more than ours.
        places = ", ".join(folders()) or "the current directory"
        raise ValueError(
            f"There is no environment {environment!r}: there is no module {error.name!r} to import in {places}, nor among what is "
            "installed. Run from the folder that it lies in, or name that folder in PYTHONPATH."
        ) from error
    except RAISED as error:
        raise fault(f"Importing {module} for environment {environment}", error) from error
    finally:
        for folder in folders():
            sys.path.remove(folder)
        append_to_path()  # for good: what the module imports later, when it makes an environment say, may lie beside it


def found_in(environment: str) -> str | None:
    """The folder, of those that were looked in, where the module of ``environment`` was found; None for what is installed."""
    top = sys.modules.get(environment.rpartition(":")[0].partition(".")[0])
    file = getattr(top, "__file__", None)
    places = [Path(file).parent] if file else []
    places += [Path(place).parent for place in getattr(top, "__path__", [])]
    return next((folder for folder in folders() if Path(folder) in places), None)
