"""Registries: the names that a setting takes for the parts that come with the project, and ``module:Name`` for a user's own."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import import_module

_T = TypeVar("_T")

_given: dict[str, Any] = {}
"""Parts that a program gave as objects, by their names."""


class GivenName(str):
    """The name of a part that a program gave as an object. Pickled, it takes the object along to the process that reads it."""

    part: Any

    def __reduce__(self) -> Any:
        return _give, (str(self), self.part)


def _give(name: str, part: Any) -> GivenName:
    _given[name] = part
    given = GivenName(name)
    given.part = part
    return given


def name_of(part: Any) -> str:
    """What a setting says for ``part``: a name as it is, and for an object ``module:Name``.

    A class or function that can be imported from its module is looked up there; any other object stays known to this process,
    and to those that its settings are sent to, but not to a later run.
    """
    if isinstance(part, str):
        return _give(part, _given[part]) if part in _given else part
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind is part and kind.__module__ != "__main__" and "<" not in name:
        return name
    name += "" if kind is part else "(…)"
    number = 1
    while (other := name if number == 1 else f"{name}-{number}") in _given and _given[other] is not part:
        number += 1
    return _give(other, part)


class Registry(Generic[_T]):
    """Makes a part from its name.

    Args:
        setting: that names the part, for errors.
        protocol: what a part has to have.
        parts: what makes each of those in the box.
        others: further names that the setting takes, which stand for no part.
    """

    def __init__(
        self, setting: str, protocol: type, parts: Mapping[str, Callable[..., _T]], others: tuple[str, ...] = ()
    ):
        self.setting, self.protocol, self.parts, self.others = setting, protocol, dict(parts), others

    def make(self, name: str, **offered: Any) -> _T:
        """The part that ``name`` stands for: one in the box, or ``module:Name``, what makes one or is one.

        Args:
            name: in the box, or ``module:Name``.
            offered: arguments; what makes the part is given those that it has parameters for, by name.

        Raises:
            SettingError: there is no such part, it can't be made, or it lacks what the protocol asks.
        """
        kind = self.find(name)
        if name in self.parts:
            made: _T = kind(**_taken(kind, offered))
            return made
        part: Any = kind
        if inspect.isclass(kind) or inspect.isroutine(kind):
            try:
                part = kind(**_taken(kind, offered))
            except SettingError:
                raise
            except Exception as error:
                raise SettingError(
                    f"{self.setting} is {name!r}, and making it raised {type(error).__name__}: {error}. It may take "
                    f"{', '.join(offered) or 'no arguments'}"
                    f"{', each by its name' if offered else ''}."
                ) from error
        self._check(name, part, _members(self.protocol))
        result: _T = part
        return result

    def check(self, name: str) -> None:
        """Check a class, or an object, that ``name`` stands for, without making anything. What makes one is not called.

        Raises:
            SettingError: there is no such part, or it lacks a method, or has one with other parameters.
        """
        kind = self.find(name)
        if name not in self.parts and not inspect.isroutine(kind):
            self._check(name, kind, [member for member in _members(self.protocol) if member in vars(self.protocol)])

    def _check(self, name: str, part: Any, members: Sequence[str]) -> None:
        asked = f"see {self.protocol.__module__}.{self.protocol.__name__} for what a {self.protocol.__name__.lower()} is asked"
        if lacking := [member for member in members if not hasattr(part, member)]:
            raise SettingError(f"{self.setting} is {name!r}, which lacks {', '.join(lacking)}: {asked}.")
        for member in members:
            own, wanted = getattr(part, member), getattr(self.protocol, member, None)
            if inspect.isroutine(wanted) and (call := _misfit(own, wanted, of_class=inspect.isclass(part))):
                raise SettingError(
                    f"{self.setting} is {name!r}, whose {member} can't be called as {member}{call}: {asked}."
                )

    def find(self, name: str) -> Any:
        """What ``name`` stands for, not yet made.

        Raises:
            SettingError: there is nothing of this name.
        """
        if name in self.parts:
            return self.parts[name]
        if name in _given:
            return _given[name]
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            known = ", ".join([*self.parts, *self.others])
            known = f"one of {known}, or module:Name for your own" if known else "module:Name"
            raise SettingError(f"{self.setting} is {name!r}; it must be {known}.")
        if module == "__main__" or not attribute.replace(".", "").isidentifier():
            raise SettingError(
                f"{self.setting} is {name!r}, an object of the program that began this run: give it again from there, or put it "
                "into a module of its own and name it module:Name."
            )
        try:
            return operator.attrgetter(attribute)(import_module(module))
        except Exception as error:
            raise SettingError(
                f"{self.setting} is {name!r}, and importing that raised {type(error).__name__}: {error}."
            ) from error


def _taken(kind: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that ``kind`` has parameters for."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:
        return {}
    return {name: value for name, value in offered.items() if name in parameters}


def _misfit(own: Any, wanted: Callable[..., Any], of_class: bool) -> str:
    """What ``own`` would be called with, as text, where it can't be; empty where it can.

    Args:
        own: a user's method.
        wanted: the protocol's, not bound.
        of_class: whether ``own`` is not bound either.
    """
    names = list(inspect.signature(wanted).parameters)[1:]
    call = f"({', '.join(names)})"
    if not callable(own):
        return call
    try:
        signature = inspect.signature(own)
    except (TypeError, ValueError):  # some that are written in C have none
        return ""
    try:
        signature.bind(*(["self"] if of_class else []), *names)
    except TypeError:
        return call
    return ""


def _members(protocol: type) -> list[str]:
    """What the protocol asks for: its methods and attributes."""
    names = [*getattr(protocol, "__annotations__", {}), *vars(protocol)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]
