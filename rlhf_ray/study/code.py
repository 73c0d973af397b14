"""Identify the code of a step: an edited step runs again."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_ray.data.identity import identify, own_code

STUDIED = ("rlhf_ray.agents", "rlhf_ray.interpret", "rlhf_ray.measure", "rlhf_ray.study")
"""Packages whose code decides what a step finds. What lies below them (networks, environments) is identified by the version."""


def code_of(function: Callable[..., Any]) -> str:
    """Hash what a step's function does: itself, users' own modules, and the modules of `STUDIED` packages that it imports.

    Of a function of ours, its own package counts too.
    """
    module = inspect.getmodule(function)
    reached: set[str] = set()
    queue = [] if module is None else [module.__name__]
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += [each for each in _imports(name) if each.startswith(STUDIED)]
    digest = hashlib.sha256((identify(function) + own_code()).encode())
    for name in sorted(reached):
        digest.update(name.encode() + (_source(name) or b""))
    return digest.hexdigest()


@cache
def _imports(module: str) -> frozenset[str]:
    """Return the modules that ``module`` imports anywhere in its file, by name."""
    source = _source(module)
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)) if source else ():
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@cache
def _source(module: str) -> bytes | None:
    """Return the source of a module, imported or not; None if ``module`` is no file (a package's name in it, for example)."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is None and loaded is None:
        file = _file_of(module)
    return Path(file).read_bytes() if file and file.endswith(".py") else None


def _file_of(module: str) -> str | None:
    """Return the file of a module that is not imported yet, beside its package; None if it is a class or function of a module."""
    package, _, name = module.rpartition(".")
    loaded = getattr(sys.modules.get(package), "__file__", None)
    parent = Path(loaded or (_file_of(package) if package else None) or "")
    if parent.name != "__init__.py":
        return None
    places = parent.parent / f"{name}.py", parent.parent / name / "__init__.py"
    return next((str(place) for place in places if place.exists()), None)
