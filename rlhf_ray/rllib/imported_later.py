"""Modules that RLlib imports at once and needs only to work with recorded data: imported when something uses them.

RLlib and Tune import Ray Data, pandas and smart_open (with boto3): a fifth of the CPU time in which a run starts. At import they
use them in annotations only, and a run never calls the functions that use them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

RECORDED_DATA = ("pandas", "smart_open", "ray.data", "ray.data.iterator")

_waiting: dict[str, _Later] = {}
"""The modules of `sys.modules` that stand for modules of the same name."""


@contextlib.contextmanager
def imported_later(names: tuple[str, ...] = RECORDED_DATA, users: str = "ray") -> Iterator[None]:
    """Context manager: inside, the package ``users`` gets what it imports from these modules as names that import them on use.

    Modules that are already imported or not installed are left as they are. Whatever else asks for one of these modules inside, or
    for anything but a plain name, gets the module itself. After the context, they import as usual.

    Args:
        names: the modules, a package before its modules.
        users: the package that imports them.
    """
    if not any(name in sys.modules for name in names):
        for name in names:
            package, _, last = name.rpartition(".")
            parent = _waiting.get(package)
            spec = find_spec(name) if parent is None else PathFinder.find_spec(name, parent.locations)
            if spec is not None:
                _waiting[name] = _Later(spec, users)
                if parent is not None:
                    setattr(parent, last, _waiting[name])
        sys.modules.update(_waiting)
    try:
        yield
    finally:
        _stop_waiting()


def _stop_waiting() -> None:
    """Take all modules that stand for others out of `sys.modules`."""
    while _waiting:
        name, later = _waiting.popitem()
        if sys.modules.get(name) is later:
            del sys.modules[name]


def _imported(name: str) -> ModuleType:
    """Import a module."""
    _stop_waiting()
    return importlib.import_module(name)


class _Later(ModuleType):
    """Stands for a module. Who looks through all modules (as `inspect` does) sees where it lies, and doesn't import it."""

    def __init__(self, spec: ModuleSpec, users: str):
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__package__ = spec, spec.loader, spec.parent
        self.__file__ = spec.origin
        self.locations = spec.submodule_search_locations
        self._users = users

    def __getattr__(self, name: str) -> Any:
        user = sys._getframe(1).f_globals.get("__name__", "")
        if self.__name__ in _waiting and user.partition(".")[0] == self._users:
            if name == "__path__":  # `from package import name` asks whether names may be modules
                raise AttributeError(name)
            if not name.startswith("__"):
                return Name(self.__name__, name)
        return getattr(_imported(self.__name__), name)


@dataclass(frozen=True)
class Name:
    """A name of a module that is imported once the name is called, read, compared against, or inherited from."""

    module: str
    name: str

    @property
    def value(self) -> Any:
        """What the module calls by this name."""
        return getattr(_imported(self.module), self.name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call it."""
        return self.value(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.value)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.value)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self.value,)

    def __or__(self, other: Any) -> Any:
        return Any  # in an annotation

    __ror__ = __or__
