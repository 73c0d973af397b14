"""Identify objects by their code and their data: of the same identity, they do the same.

A result may be kept as long as what it was made from has the same identity. Functions and classes of users' own modules are
identified by their bytecode, by what they closed over and by the globals that they read; tensors and arrays by their bytes; what an
installed package defines by its name and the package's version. What can't be identified, such as a handle of a C library, gets a
new identity each time, so that nothing made from it is kept.
"""

import ast
import hashlib
import site
import sys
import sysconfig
import types
import uuid
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import rlhf_ray

ATOMS = (type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes)
NO_CODE = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
    *("__annotations__", "__annotate_func__", "__annotations_cache__"),
}
"""Attributes of a class that don't change what it does."""


class _UnknownError(Exception):
    """Something can't be identified."""


def identify(*values: Any) -> str:
    """Return a hash of ``values``, 32 hex digits: the same for the same code and data, in any process of one Python version.

    If a part can't be identified, the hash is a new one each time.
    """
    walk = _Walk()
    try:
        walk.add(values)
    except (_UnknownError, RecursionError):
        return uuid.uuid4().hex
    return walk.hash.hexdigest()[:32]


def own_code() -> str:
    """Hash the files of users' own modules: those that are loaded, and what they import from beside them, also in functions."""
    files, queue = set[Path](), [file for module in list(sys.modules.values()) if (file := _own_file(module))]
    while queue:
        file = queue.pop()
        if file not in files and file.is_file():
            files.add(file)
            queue += _beside(file, file.read_bytes())
    content = hashlib.sha256()
    for file in sorted(files):
        content.update(str(file).encode() + hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()


class _Walk:
    """Hashes values, each object once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        """Keeps what was seen, so that no other object gets its id."""

    def put(self, *texts: Any) -> None:
        """Hash texts or bytes."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self.hash.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any) -> None:
        """Hash ``value`` and all that it does depends on."""
        kind = type(value)
        if kind in ATOMS:
            self.put(kind.__name__, repr(value))
        elif kind is tuple:
            self.put("tuple", len(value))
            for each in value:
                self.add(each)
        elif kind in (set, frozenset):
            self.put("set", *sorted(identify(each) for each in value))
        elif id(value) in self._seen:
            self.put("again", self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._object(value)

    def _object(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self.put(value.co_code, value.co_flags, value.co_argcount, getattr(value, "co_exceptiontable", b""))
            self.add((value.co_names, value.co_consts, value.co_freevars))
        elif isinstance(value, type):
            self._name(value.__module__ if installed(value.__module__) else "", value.__qualname__)
            if not installed(value.__module__):
                self.add(value.__bases__)
                self.add({name: part for name, part in sorted(vars(value).items()) if name not in NO_CODE})
        elif isinstance(value, types.ModuleType):
            self._name(value.__name__, "module")
            file = _own_file(value)
            self.put(file.read_bytes() if file is not None and file.is_file() else "")
        elif isinstance(value, types.MethodType):
            self.add((value.__func__, value.__self__))
        elif isinstance(value, property | staticmethod | classmethod | cached_property):
            self.add(tuple(getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__", "func")))
        elif isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
            self.put("slot", value.__name__)
        else:
            self._data(value)

    def _data(self, value: Any) -> None:
        torch = sys.modules.get("torch")
        if type(value) in (list, dict, types.MappingProxyType):
            self.put(type(value).__name__)
            self.add(tuple(value if isinstance(value, list) else value.items()))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self.put("array", value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        elif torch is not None and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1)
            self.put("tensor", value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, gym.Space):  # without its generator, which sampling moves
            self.add(type(value))
            self.add({name: part for name, part in vars(value).items() if name != "_np_random"})
        else:
            self._reduced(value)

    def _function(self, function: types.FunctionType) -> None:
        if installed(function.__module__):
            self._name(function.__module__, function.__qualname__)
        else:
            self.add(function.__code__)
            known = function.__globals__
            self.add({name: known[name] for name in sorted(_names(function.__code__) & known.keys())})
        cells = function.__closure__ or ()
        self.add((function.__defaults__, function.__kwdefaults__, tuple(map(_content, cells))))
        self.add({name: part for name, part in vars(function).items() if name != "__wrapped__"})

    def _name(self, module: str, name: str) -> None:
        version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")
        self.put("name", module, name, version)

    def _reduced(self, value: Any) -> None:
        """Hash an object by what pickle would save of it."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception as error:
            raise _UnknownError(type(value).__name__) from error
        self.add(type(value))
        if isinstance(parts, str):  # its name in its module
            self._name(str(getattr(value, "__module__", "")), parts)
            self.add(getattr(value, "__wrapped__", None))  # of a cached function
            return
        made, arguments, state, *items = (*parts, None, None, None)[:5]
        self.add((made, arguments, state, *(None if each is None else list(each) for each in items)))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "empty"


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code, and the functions in it, may read from the globals."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _own_file(module: Any) -> Path | None:
    """Return the file of a module of a user's own; None for installed modules and those without a file."""
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and not file.startswith(_packages()) else None


def installed(module: str | None) -> bool:
    """Return whether a module is Python's, an installed package's or ours."""
    loaded = sys.modules.get(module or "")
    if isinstance(file := getattr(loaded, "__file__", None), str):
        return file.startswith(_packages())
    return getattr(getattr(loaded, "__spec__", None), "origin", None) in ("built-in", "frozen")


@cache
def _packages() -> tuple[str, ...]:
    """Return the folders of what is installed: Python, packages, ours."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(rlhf_ray.__file__).parent)]
    real = [str(Path(folder).resolve()) for folder in folders]
    return tuple(f"{folder}/" for folder in dict.fromkeys([*folders, *real]))


@cache
def _beside(file: Path, content: bytes) -> list[Path]:
    """Return the files beside ``file``, or above it in its package, that it may import."""
    if file.suffix != ".py":
        return []
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):
        return []
    imports = [(getattr(node, "module", None), node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {".".join(filter(None, (module, alias.name))) for module, node in imports for alias in node.names}
    roots = [file.parent]
    while (roots[-1] / "__init__.py").exists():
        roots.append(roots[-1].parent)
    parts = [name.split(".")[:length] for name in names for length in range(1, name.count(".") + 2)]
    places = [root.joinpath(*each) for each in parts for root in roots]
    return [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
