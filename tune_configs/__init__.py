"""Presets: one file per experiment, with its settings (``experiment``, used by `rlhf-ray train`) and its search space.

``search_space()`` returns a dict from setting names, as on the command line, to the samplers that `rlhf-ray tune` draws from.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """The names of the presets, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of the preset ``name``.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in names():
        raise ValueError(f"There is no preset {name!r}; choose from {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}")
