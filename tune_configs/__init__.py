"""Experiments: one file each, with its settings (``experiment``), which `rlhf-ray train` uses, and its search space.

``search_space()`` gives, for names of settings as on the command line, the sampler that `rlhf-ray tune` draws them from.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """The names of the experiments here, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of the experiment called ``name``.

    Raises:
        ValueError: there is none.
    """
    if name not in names():
        raise ValueError(f"There is no experiment {name!r}; there are {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}")
