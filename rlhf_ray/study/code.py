"""Identify the code of a step: an edited step runs again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import rlhf_ray
from rlhf_ray.data.identity import identify, own_code

PACKAGE = Path(rlhf_ray.__file__).parent
STUDIED = ("agents", "interpret", "measure", "study")
"""Packages whose code decides what steps find. What lies below them (networks, environments) is identified by the version."""


def code_of(function: Callable[..., Any]) -> str:
    """Hash what a step's function does: itself, users' own modules, and all modules of `STUDIED`: an edit there runs all again."""
    return hashlib.sha256((identify(function) + own_code() + _studied(PACKAGE)).encode()).hexdigest()


@cache
def _studied(package: Path) -> str:
    """Hash the packages' files, once in a process."""
    digest = hashlib.sha256()
    for path in sorted(path for name in STUDIED for path in (package / name).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
