"""Checks of settings, whose bounds are declared on the fields. Messages name the setting, the value and the remedy."""

import contextlib
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import did_you_mean, names_of

T = TypeVar("T")

Precision = Literal["auto", "float32", "bfloat16"]
"""Numbers of convolutions in gradient steps."""


LARGEST = 2**63 - 1
"""Whole numbers are at most so large, with either sign: what arrays hold, and floats reach."""


def whole_number(text: str) -> int:
    """Parse a whole number as people write them: 100000, 100_000 or 1e5. Exact, also above 2**53.

    Raises:
        ValueError: it is none (``1.5``, ``1e-3``), is larger than `LARGEST`, or has a decimal point without an exponent (``3.0``,
            which may be a share).
    """
    with contextlib.suppress(InvalidOperation):
        number = Decimal(text)
        if number.is_finite() and ("." not in text or "e" in text.lower()):
            if abs(number) > LARGEST:
                raise ValueError(f"{text!r} is not a whole number of at most 2**63 - 1")
            if number == int(number):
                return int(number)
    raise ValueError(f"{text!r} is not a whole number")


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, as an annotation of its field: ``Annotated[float, Bounds(0, 1)]``.

    Attributes:
        low: the smallest value; with ``above``, the value itself is none.
        high: the largest value; with ``below``, the value itself is none.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def hold(self, value: float) -> bool:
        """Return whether ``value`` is within them. NaN isn't."""
        above = self.low < value if self.above else self.low <= value
        return above and (value < self.high if self.below else value <= self.high)

    @property
    def rule(self) -> str:
        """What a value must be: ``at least 0 and below 1``."""
        if self.high == math.inf:
            return f"above {self.low}" if self.above else f"{self.low} or more"
        if not self.above and not self.below:
            return f"between {self.low} and {self.high}"
        least, most = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{least} {self.low} and {most} {self.high}"


Count = Annotated[int, Bounds(1)]
Natural = Annotated[int, Bounds(0)]
Positive = Annotated[float, Bounds(0, above=True)]
NonNegative = Annotated[float, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
BelowOne = Annotated[float, Bounds(0, 1, below=True)]
Discount = Annotated[float, Bounds(0, 1, above=True)]
Layers = tuple[Count, ...]
"""The number of units of each hidden layer."""


CHANGEABLE = "changeable"
"""Key of a field's metadata: whether the setting may change during a training."""


def changeable(default: T) -> T:
    """Return a field for a setting that may change during a training, as in population-based training.

    A new value takes effect at the next iteration or fit. Checkpoints fix all other settings (networks, fragments, budgets). So
    the code must read such a setting at each use: not once in a constructor, nor into a buffer that a checkpoint restores.
    """
    value: T = field(default=default, metadata={CHANGEABLE: True})
    return value


def require(condition: bool, setting: str, value: object, rule: str) -> None:
    """Raise a `SettingError` that names ``setting``, its ``value`` and the ``rule`` unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"{setting} is {value!r}; {rule}.")


def require_known(given: Iterable[str], known: Iterable[str], group: str, inside: Sequence[str] = ()) -> None:
    """Check that the settings ``given`` of a group are among the ``known`` ones.

    Names ``inside`` are those ``group.name`` of groups inside this one, which belong there.

    Raises:
        SettingError: one is unknown; the message has the nearest names.
    """
    names = list(known)
    for name in sorted(set(given) - set(names)):
        near = did_you_mean(name, [*names, *inside]) or f"it has {', '.join(names)}."
        if "." in near.partition("?")[0]:
            near += ' A group of settings is an object, such as "ppo": {"gamma": 0.99}.'
        raise SettingError(f"{group} has no setting {name}; {near}")


def check_values(settings: object, group: str = "", infinite: Sequence[str] = ()) -> None:
    """Check each field of a frozen dataclass against its type, with the `Bounds` of its numbers, and give it a value of that type.

    Whole numbers may be floats, such as 1e5 from JSON. One value may be given where several may be. Errors name the ``group``, or
    with ``--`` the options of a command. The fields ``infinite`` may be so.

    Raises:
        SettingError: a field has another value.
    """
    kind: Any = type(settings)
    for name, (parts, many) in _kinds(kind).items():
        value, setting = getattr(settings, name), f"{group}.{name}" if group else name
        if group == "--":
            setting = f"--{name.replace('_', '-')}"
        if many:
            values = value if isinstance(value, list | tuple) else (value,)
            value = tuple(_checked(inner, parts, setting, name in infinite) for inner in values)
            require(bool(value) or parts[0][0] is str, setting, value, "give at least one number")
        else:
            value = _checked(value, parts, setting, name in infinite)
        object.__setattr__(settings, name, value)


Part = tuple[Any, Bounds | None]
"""One of the types of a field, or a single value of a `Literal`; and the bounds of a number."""


@functools.cache
def _kinds(of: type) -> dict[str, tuple[list[Part], bool]]:
    """Return by field what it takes, and whether it takes several."""
    found = {}
    for name, kind in get_type_hints(of, include_extras=True).items():
        many = get_origin(kind) is tuple
        found[name] = list(_parts(get_args(kind)[0] if many else kind)), many
    return found


def _parts(kind: Any, bounds: Bounds | None = None) -> Iterator[Part]:
    if (marks := getattr(kind, "__metadata__", None)) is not None:
        yield from _parts(kind.__origin__, next((mark for mark in marks if isinstance(mark, Bounds)), None))
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _parts(part, bounds)
    elif get_origin(kind) is Literal:
        yield from ((value, None) for value in get_args(kind))
    else:
        yield None if kind is NoneType else get_origin(kind) or kind, bounds


def _checked(value: Any, parts: Sequence[Part], setting: str, infinite: bool) -> Any:
    """Return the value, a whole number as an int."""
    kinds = [kind for kind, _ in parts]
    if any(type(value) is type(kind) and value == kind for kind in kinds):  # one of a Literal, or None
        return value
    if int in kinds or float in kinds:
        return _number(value, parts, setting, infinite)
    for kind, rule in ((bool, "it must be true or false"), (str, "it must be a text")):
        if kind in kinds:
            require(isinstance(value, kind), setting, value, rule)
            return value
    if not any(isinstance(kind, type) for kind in kinds):
        require(False, setting, value, f"it must be one of {', '.join(map(str, kinds))}")
    return value


def _number(value: Any, parts: Sequence[Part], setting: str, infinite: bool) -> Any:
    bounds = {kind: of for kind, of in parts if kind in (int, float)}
    others = [f", or {kind}" for kind, _ in parts if kind not in (int, float)]
    rule = "".join([f"it must be a {'' if float in bounds else 'whole '}number", *others])
    require(isinstance(value, Real) and not isinstance(value, bool), setting, value, rule)
    if (LARGEST if int in bounds else sys.float_info.max) < abs(value) < math.inf:
        most = "it must be at most 2**63 - 1" if int in bounds else "it must be a finite number"
        require(False, setting, f"about {'-' if value < 0 else ''}1e{math.log10(abs(value)):.0f}", most)
    whole = float(value).is_integer() and (float not in bounds or value > 1 or isinstance(value, Integral))
    kind = int if int in bounds and whole else float
    require(kind in bounds, setting, value, rule)
    value = int(value) if kind is int else value
    if (within := bounds[kind]) is not None:
        require(within.hold(value), setting, value, "".join([f"it must be {within.rule}", *others]))
    require(infinite or math.isfinite(value), setting, value, "it must be a finite number")
    return value


def name_parts(settings: object, *names: str) -> None:
    """Replace parts given as objects by their names (`rlhf_ray.data.registry`). Comes before `check_values`."""
    for name in names:
        object.__setattr__(settings, name, names_of(getattr(settings, name)))
