"""Identify objects by their code and their data: of the same identity, they do the same.

A result may be kept as long as what it was made from has the same identity. It is a hash of a pickle that nobody reads:
functions and classes of users' own modules are in it by their file's content, what they closed over and their defaults; tensors and
arrays by their bytes; what an installed package defines by its name. What can't be pickled, such as a handle of a C library or
a function of a notebook, gets a new identity each time, so that nothing made from it is kept.
"""

from __future__ import annotations

import ast
import hashlib
import io
import pickle
import site
import sys
import sysconfig
import types
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym

import rlhf_ray


def identify(*values: Any) -> str:
    """Return a hash of ``values``, 32 hex digits: the same for the same code and data, in any process of one Python version.

    If a part can't be identified, the hash is a new one each time.
    """
    content = io.BytesIO()
    try:
        _Pickler(content, protocol=5).dump(values)
    except Exception:  # objects raise what they like
        return uuid.uuid4().hex
    return hashlib.sha256(content.getvalue()).hexdigest()[:32]


class _Pickler(pickle.Pickler):
    """Pickles an identity: what it writes can't be loaded."""

    def reducer_override(self, obj: Any) -> Any:
        """Return what identifies ``obj``, as a call that nobody makes."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            flat = obj.detach().cpu().contiguous().reshape(-1)
            return tuple, (str(obj.dtype), tuple(obj.shape), flat.view(torch.uint8).numpy().tobytes())
        if isinstance(obj, gym.Space):  # without its generator, which sampling moves
            return tuple, (type(obj), {name: part for name, part in vars(obj).items() if name != "_np_random"})
        if isinstance(obj, types.ModuleType | types.FunctionType | type):
            module = obj.__name__ if isinstance(obj, types.ModuleType) else obj.__module__
            file = getattr(sys.modules.get(module), "__file__", None)
            if isinstance(file, str) and Path(file).is_file():
                version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")
                content = version if _in_packages(file) else _read(Path(file))[0]
                return tuple, (module, getattr(obj, "__qualname__", ""), content, *_of_function(obj))
        return NotImplemented


def _of_function(obj: Any) -> tuple[Any, ...]:
    """What tells a function from others of the same name in its file."""
    if not isinstance(obj, types.FunctionType):
        return ()
    cells = [_content(cell) for cell in obj.__closure__ or ()]
    return tuple(obj.__code__.co_positions()), cells, obj.__defaults__, obj.__kwdefaults__, vars(obj)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "empty"


def own_code() -> str:
    """Hash the files of users' own modules: those that are loaded, and what they import from beside them, also in functions."""
    files, queue = set[Path](), [file for module in list(sys.modules.values()) if (file := _own_file(module))]
    while queue:
        file = queue.pop()
        if file not in files and file.is_file():
            files.add(file)
            queue += _read(file)[1]
    content = hashlib.sha256()
    for file in sorted(files):
        content.update(str(file).encode() + _read(file)[0])
    return content.hexdigest()


def _read(file: Path) -> tuple[bytes, list[Path]]:
    """Return a file's hash and the files beside it that it may import. A file that has not changed is read once."""
    stat = file.stat()
    return _read_at(file, stat.st_mtime_ns, stat.st_size, stat.st_ino)


@cache
def _read_at(file: Path, *version: int) -> tuple[bytes, list[Path]]:
    content = file.read_bytes()
    return hashlib.sha256(content).digest(), _beside(file, content)


def _own_file(module: Any) -> Path | None:
    """Return the file of a module of a user's own; None for installed modules and those without a file."""
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and not _in_packages(file) else None


def installed(module: str | None) -> bool:
    """Return whether a module is Python's, an installed package's or ours."""
    loaded = sys.modules.get(module or "")
    file = getattr(loaded, "__file__", None)
    if isinstance(file, str):
        return _in_packages(file)
    return getattr(getattr(loaded, "__spec__", None), "origin", None) in ("built-in", "frozen")


def _in_packages(file: str) -> bool:
    return file.startswith(_packages())


@cache
def _packages() -> tuple[str, ...]:
    """Return the folders of what is installed: Python, packages, ours."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(rlhf_ray.__file__).parent)]
    real = [str(Path(folder).resolve()) for folder in folders]
    return tuple(f"{folder}/" for folder in dict.fromkeys([*folders, *real]))


def _beside(file: Path, content: bytes) -> list[Path]:
    """Return the files beside ``file``, or above it in its package, that it may import."""
    if file.suffix != ".py":
        return []
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {".".join(filter(None, (node.module, alias.name))) for alias in node.names}
    roots = [file.parent]
    while (roots[-1] / "__init__.py").exists():
        roots.append(roots[-1].parent)
    found = []
    for name in names:
        parts = name.split(".")
        for root in roots:
            for length in range(1, len(parts) + 1):
                place = root.joinpath(*parts[:length])
                found += [place.with_suffix(".py"), place / "__init__.py"]
    return [place for place in found if place.is_file()]
