"""Files that operating systems, network drives and cloud folders leave beside other people's: nobody's content."""

import re
from collections.abc import Iterable
from pathlib import Path

_STRAY = re.compile(
    r"\._.*|\.(ds_store|localized|directory|nfs[0-9a-f]+)|desktop\.ini|(eh)?thumbs\.db|icon\r|@eadir"
    r"|.*\bconflicted copy\b.*|.*\.sync-conflict-.*",
    re.IGNORECASE | re.DOTALL,
)


def stray(name: str) -> bool:
    """Return whether ``name`` is that of a stray file: a Mac's ``._x``, ``Thumbs.db``, ``x (conflicted copy).csv``."""
    return _STRAY.fullmatch(name) is not None


def without_strays(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that aren't stray files, sorted."""
    return sorted(path for path in paths if not stray(path.name))


def is_empty(folder: Path) -> bool:
    """Return whether the existing ``folder`` holds nothing but stray files."""
    return not without_strays(folder.iterdir())
