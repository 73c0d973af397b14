"""Registries: map a setting's value to a part, built in or a user's own (``module:Name``)."""

import contextlib
import difflib
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import NoModuleError, import_module

_T = TypeVar("_T")

_given: dict[str, Any] = {}
"""Parts given as objects, by name."""


class GivenName(str):
    """The name of a part given as an object. Pickling it includes the object, so that other processes find it."""

    part: Any

    def __reduce__(self) -> Any:
        return _give, (str(self), self.part)


def _give(name: str, part: Any) -> GivenName:
    _given[name] = part
    named = GivenName(name)
    named.part = part
    return named


def name_of(part: Any) -> str:
    """Return the setting's value for ``part``: a name unchanged, ``module:Name`` for an object.

    An importable class or function is imported by name. Any other object is known to this process and to those that its settings
    are sent to, but not to a later run.
    """
    if isinstance(part, str):
        return _give(part, _given[part]) if part in _given else part
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind is part and kind.__module__ != "__main__" and "<" not in name:
        return name
    name += "" if kind is part else "(…)"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return _give(next(each for each in names if _given.get(each, part) is part), part)


def names_of(value: Any) -> Any:
    """Return `name_of` a part; a tuple of names for a sequence of parts."""
    return tuple(map(name_of, value)) if isinstance(value, list | tuple) else name_of(value)


class Registry(Generic[_T]):
    """Makes parts from names.

    Args:
        setting: the setting that names the part, for errors.
        protocol: the protocol that a part must satisfy.
        parts: factories of the built-in parts, by name.
        others: further valid values of the setting that stand for no part.
    """

    def __init__(
        self, setting: str, protocol: type, parts: Mapping[str, Callable[..., _T]], others: tuple[str, ...] = ()
    ):
        self.setting, self.protocol, self.parts, self.others = setting, protocol, dict(parts), others

    def make(self, name: str, **offered: Any) -> _T:
        """Make the part that ``name`` stands for.

        Args:
            name: a built-in part, or ``module:Name`` of a class, a function that returns the part, or the part itself.
            offered: arguments by name. The factory gets those that it has parameters for.

        Raises:
            SettingError: there is no such part, making it failed, or it doesn't satisfy the protocol.
        """
        part = kind = self.find(name)
        if name in self.parts:
            return cast(_T, kind(**_taken(kind, offered)))
        if inspect.isclass(kind) or inspect.isroutine(kind):
            try:
                part = kind(**_taken(kind, offered))
            except SettingError:
                raise
            except Exception as error:
                takes = f"{', '.join(offered)}, each by name" if offered else "no arguments"
                raise SettingError(
                    f"{self.setting} is {name!r}, and making it raised {type(error).__name__}: {error}. It may take {takes}."
                ) from error
        self._check(name, part, _members(self.protocol))
        return cast(_T, part)

    def check(self, name: str) -> None:
        """Check the class or object that ``name`` stands for, without calling it. Factory functions are not checked.

        Raises:
            SettingError: there is no such part, or a method is missing or has other parameters.
        """
        kind = self.find(name)
        if name not in self.parts and not inspect.isroutine(kind):
            self._check(name, kind, [member for member in _members(self.protocol) if member in vars(self.protocol)])

    def _check(self, name: str, part: Any, members: Sequence[str]) -> None:
        asked = f"see {self.protocol.__module__}.{self.protocol.__name__} for what it needs"
        if lacking := [member for member in members if not hasattr(part, member)]:
            raise SettingError(f"{self.setting} is {name!r}, which lacks {', '.join(lacking)}: {asked}.")
        for member in members:
            if not inspect.isroutine(wanted := getattr(self.protocol, member, None)):
                continue
            names = list(inspect.signature(wanted).parameters)[1:]
            try:
                inspect.signature(getattr(part, member)).bind(*["self"] * inspect.isclass(part), *names)
            except TypeError as error:
                call = f"{member}({', '.join(names)})"
                raise SettingError(
                    f"{self.setting} is {name!r}, whose {member} can't be called as {call}: {asked}."
                ) from error
            except ValueError:  # some functions written in C have no signature
                pass

    def find(self, name: str) -> Any:
        """Return the factory, class or object that ``name`` stands for.

        Raises:
            SettingError: there is none.
        """
        if name in self.parts:
            return self.parts[name]
        if name in _given:
            return _given[name]
        module, _, attribute = name.partition(":")
        known, given = [*self.parts, *self.others], f"{self.setting} is {name!r}"
        if not module or not attribute:
            must = f"one of {', '.join(known)}, or module:Name for a custom one" if known else "module:Name"
            near = did_you_mean(name, known)
            raise SettingError(f"{given}; {f'{near} It' if near else 'it'} must be {must}.")
        if module == "__main__" or not attribute.replace(".", "").isidentifier():
            raise SettingError(
                f"{given}, an object of the program that started this run: pass it again from there, or move it into a module and "
                "name it module:Name."
            )
        try:
            target = import_module(module)
        except NoModuleError as error:
            raise SettingError(f"{given}, but {error}.") from error
        except Exception as error:
            raise SettingError(f"{given}, and importing it raised {type(error).__name__}: {error}.") from error
        try:
            return operator.attrgetter(attribute)(target)
        except AttributeError as error:
            place = getattr(target, "__file__", None) or module
            near = did_you_mean(attribute, [public for public in vars(target) if not public.startswith("_")])
            remedy = f"correct the name{near and f' ({near})'}, or define it there"
            raise SettingError(f"{given}, but {place} has no {attribute}: {remedy}.") from error


def _taken(kind: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``kind`` has parameters for."""
    with contextlib.suppress(ValueError):  # some functions written in C have no signature
        parameters = inspect.signature(kind).parameters
        return {name: value for name, value in offered.items() if name in parameters}
    return {}


def _members(protocol: type) -> list[str]:
    """Return the names of the protocol's methods and attributes."""
    names = [*getattr(protocol, "__annotations__", {}), *vars(protocol)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return "did you mean A or B?" with the likeliest of the ``known`` names; empty if nothing is near.

    Args:
        name: a name, or ``group.name``. It may lack its group. Hyphens count as underscores, capitals as small letters.
        known: the names that exist.
        form: how to write each name.
    """
    group, _, last = name.lower().replace("-", "_").rpartition(".")
    names = {each: each.lower().rpartition(".") for each in known}
    like = difflib.get_close_matches(last, {end for _, _, end in names.values()}, 1, 0.7)
    close = [each for each, (_, _, end) in names.items() if end in like]
    close = [form.format(each) for each in close if names[each][0] == group] or [form.format(each) for each in close]
    return f"did you mean {' or '.join(close[:3])}?" if close else ""
