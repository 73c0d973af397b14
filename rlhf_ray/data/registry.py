"""Registries: the names that a setting takes for the parts that come with the project, and ``module:Name`` for a user's own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from rlhf_ray.data.errors import SettingError

_T = TypeVar("_T")


class Registry(Generic[_T]):
    """Makes a part from its name.

    Args:
        setting: that names the part, for errors.
        protocol: what a part has to have.
        parts: what makes each of those in the box.
    """

    def __init__(self, setting: str, protocol: type, parts: Mapping[str, Callable[..., _T]]):
        self.setting, self.protocol, self.parts = setting, protocol, dict(parts)

    def make(self, name: str, *arguments: Any, **keywords: Any) -> _T:
        """The part that ``name`` stands for: one in the box, or ``module:Name``, a class or function that makes one.

        Raises:
            SettingError: there is no such part, it can't be made, or it lacks what the protocol asks.
        """
        if name in self.parts:
            return self.parts[name](*arguments, **keywords)
        kind = self.find(name)
        try:
            part = kind(*_taken(kind, arguments), **keywords)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(
                f"{self.setting} is {name!r}, and making it raised {type(error).__name__}: {error}"
            ) from error
        lacking = [member for member in _members(self.protocol) if not hasattr(part, member)]
        if lacking:
            raise SettingError(
                f"{self.setting} is {name!r}, and a {self.protocol.__name__} needs {', '.join(lacking)}, which it lacks: see "
                f"{self.protocol.__module__}.{self.protocol.__name__}."
            )
        return part

    def find(self, name: str) -> Callable[..., _T]:
        """What makes the part that ``name`` stands for.

        Raises:
            SettingError: there is nothing of this name.
        """
        if name in self.parts:
            return self.parts[name]
        module, colon, attribute = name.partition(":")
        if not colon or not module or not attribute:
            known = (
                f"one of {', '.join(self.parts)}, or module:Name for one of your own" if self.parts else "module:Name"
            )
            raise SettingError(f"{self.setting} is {name!r}; it must be {known}.")
        try:
            found: Callable[..., _T] = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise SettingError(
                f"{self.setting} is {name!r}, and importing that raised {type(error).__name__}: {error}"
            ) from error
        if not callable(found):
            raise SettingError(
                f"{self.setting} is {name!r}, and that is no class or function: name what makes a {self.protocol.__name__}."
            )
        return found


def _taken(kind: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """As many of the arguments as ``kind`` takes: a user's class may need none of them."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:
        return ()
    if any(of.kind is of.VAR_POSITIONAL for of in parameters):
        return arguments
    positional = [of for of in parameters if of.kind in (of.POSITIONAL_ONLY, of.POSITIONAL_OR_KEYWORD)]
    return arguments[: len(positional)]


def _members(protocol: type) -> list[str]:
    """What the protocol asks for: its methods and attributes."""
    names = [*getattr(protocol, "__annotations__", {}), *vars(protocol)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]
