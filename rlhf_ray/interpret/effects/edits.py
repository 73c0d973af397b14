"""Edits of recorded steps, each a small dataclass: objects of grids, regions of images, features of vectors."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args, get_type_hints

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions

When = Literal["both", "state", "next_state"]
"""What is edited: the observation, the next observation, or both alike."""
Frames = tuple[Array, ...]
"""The edited observations: one array ``[n, …]``, or two for "both"."""

FREE = 0.0
"""Object code of a free cell."""


class EditOperation(Protocol):
    """An edit. ``apply`` returns the edited frames; it may draw with ``rng``, the same for state and next state."""

    on: ClassVar[str]
    when: When

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Edit ``frames``: grids ``[n, cells]``, images ``[n, height, width, channels]`` or vectors ``[n, features]``."""
        ...


@dataclass(frozen=True)
class Remove:
    """Remove the objects with a code, everywhere or from one cell."""

    on: ClassVar[str] = "grid"
    object: float
    at: int | None = None
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Put free cells in place of the objects."""
        chosen = np.ones(frames[0].shape[1], bool) if self.at is None else np.arange(frames[0].shape[1]) == self.at
        return tuple(np.where((frame == self.object) & chosen, FREE, frame) for frame in frames)


@dataclass(frozen=True)
class Add:
    """Put objects on cells that are free: on those ``at`` the given cells, else on ``count`` free ones at random (-1: on all)."""

    on: ClassVar[str] = "grid"
    object: float
    at: tuple[int, ...] | None = None
    count: int = 1
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Put the objects; cells must be free in all edited frames."""
        free = np.all([frame == FREE for frame in frames], 0)
        if self.at is not None:
            chosen = free & np.isin(np.arange(free.shape[1]), self.at)
        elif self.count < 0:
            chosen = free
        else:
            order = np.where(free, rng.random(free.shape), 2).argsort(1)[:, : self.count]
            chosen = np.zeros_like(free)
            np.put_along_axis(chosen, order, True, 1)
            chosen &= free
        return tuple(np.where(chosen, self.object, frame) for frame in frames)


@dataclass(frozen=True)
class Duplicate:
    """Put one more object of a code on a free cell, in steps that show one already."""

    on: ClassVar[str] = "grid"
    object: float
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Put the second object."""
        shown = (frames[0] == self.object).any(1)[:, None]
        return tuple(
            np.where(shown, new, old) for new, old in zip(Add(self.object).apply(frames, rng), frames, strict=True)
        )


@dataclass(frozen=True)
class Move:
    """Move an object to one cell (``to``), or to a random free one. All objects of the code are removed, one is put."""

    on: ClassVar[str] = "grid"
    object: float
    to: int | None = None
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Remove and put the object, in steps that show it."""
        shown = np.all([(frame == self.object).any(1) for frame in frames], 0)[:, None]
        if self.to is None:
            put = Add(self.object).apply(frames, rng)
            places = [(new == self.object) & (old != self.object) for new, old in zip(put, frames, strict=True)]
            shown = shown & places[0].any(1)[:, None]
        else:
            places = [np.broadcast_to(np.arange(frames[0].shape[1]) == self.to, frames[0].shape)] * len(frames)
        cleared = Remove(self.object).apply(frames, rng)
        return tuple(
            np.where(shown, np.where(place, self.object, clear), old)
            for place, clear, old in zip(places, cleared, frames, strict=True)
        )


@dataclass(frozen=True)
class Swap:
    """Exchange the objects of two codes."""

    on: ClassVar[str] = "grid"
    first: float
    second: float
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Exchange the codes."""
        return tuple(
            np.where(frame == self.first, self.second, np.where(frame == self.second, self.first, frame))
            for frame in frames
        )


@dataclass(frozen=True)
class Fill:
    """Fill a box of images with one value per channel, or one for all. Boxes are (first, one past the last)."""

    on: ClassVar[str] = "image"
    rows: tuple[int, int]
    columns: tuple[int, int]
    value: tuple[float, ...]
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Fill the box."""
        edited = [frame.copy() for frame in frames]
        for frame in edited:
            frame[:, slice(*self.rows), slice(*self.columns)] = np.asarray(self.value, frame.dtype)
        return tuple(edited)


@dataclass(frozen=True)
class Copy:
    """Copy a box of images to another place of the same image, ``to`` (row, column) of its upper left corner."""

    on: ClassVar[str] = "image"
    rows: tuple[int, int]
    columns: tuple[int, int]
    to: tuple[int, int]
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Copy the box, cut off at the image's edge."""
        edited = [frame.copy() for frame in frames]
        for frame, old in zip(edited, frames, strict=True):
            target = frame[:, self.to[0] :, self.to[1] :]
            box = old[:, slice(*self.rows), slice(*self.columns)]
            height, width = min(target.shape[1], box.shape[1]), min(target.shape[2], box.shape[2])
            target[:, :height, :width] = box[:, :height, :width]
        return tuple(edited)


@dataclass(frozen=True)
class Blur:
    """Blur a box of images by a Gaussian of ``sigma`` pixels."""

    on: ClassVar[str] = "image"
    rows: tuple[int, int]
    columns: tuple[int, int]
    sigma: float = 3.0
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Blur the box, from what surrounds it too."""
        from scipy.ndimage import gaussian_filter  # a slow import that training does not need

        edited = [frame.copy() for frame in frames]
        for frame, old in zip(edited, frames, strict=True):
            blurred = gaussian_filter(old.astype(np.float32), (0, self.sigma, self.sigma, 0))
            box = (slice(None), slice(*self.rows), slice(*self.columns))
            frame[box] = (blurred[box].round() if old.dtype == np.uint8 else blurred[box]).astype(old.dtype)
        return tuple(edited)


@dataclass(frozen=True)
class SetTo:
    """Set a feature of vectors to a value."""

    on: ClassVar[str] = "vector"
    feature: int
    value: float
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Set the feature."""
        edited = [frame.copy() for frame in frames]
        for frame in edited:
            frame[:, self.feature] = self.value
        return tuple(edited)


@dataclass(frozen=True)
class Exchange:
    """Exchange a feature of vectors with that of other steps, drawn at random."""

    on: ClassVar[str] = "vector"
    feature: int
    when: When = "both"

    def apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Exchange the feature."""
        order = rng.permutation(len(frames[0]))
        edited = [frame.copy() for frame in frames]
        for frame, old in zip(edited, frames, strict=True):
            frame[:, self.feature] = old[order, self.feature]
        return tuple(edited)


AnyEdit = Remove | Add | Duplicate | Move | Swap | Fill | Copy | Blur | SetTo | Exchange
KINDS: dict[str, type[AnyEdit]] = {kind.__name__.lower(): kind for kind in get_args(AnyEdit)}


def edited(steps: Transitions, edits: Sequence[AnyEdit], rng: np.random.Generator) -> tuple[Transitions, BoolArray]:
    """Apply ``edits`` one after another.

    Returns:
        The steps, and which of them any edit changed, ``[n]`` bool. The true rewards are unknown (NaN) then.
    """
    result = steps
    shape = steps.observations.shape
    flat = (len(steps), -1)
    for edit in edits:
        names = {
            "both": ("observations", "next_observations"),
            "state": ("observations",),
            "next_state": ("next_observations",),
        }[edit.when]
        frames = tuple(getattr(result, name) for name in names)
        if edit.on != "image":
            frames = tuple(frame.reshape(flat) for frame in frames)
        changed = edit.apply(frames, rng)
        result = result.with_(
            **{
                name: new.reshape(shape).astype(steps.observations.dtype)
                for name, new in zip(names, changed, strict=True)
            }
        )
    differs = [
        (getattr(result, name) != getattr(steps, name)).reshape(flat).any(1)
        for name in ("observations", "next_observations")
    ]
    at = np.asarray(differs[0] | differs[1])
    return result.with_(rewards=np.where(at, np.nan, steps.rewards)), at


def check(
    edits: Sequence[AnyEdit], shape: Sequence[int], dtype: np.dtype[Any], grid: tuple[int, int] | None, case: str
) -> None:
    """Check that ``edits`` fit observations of ``shape`` and ``dtype``.

    Raises:
        SettingError: they don't.
    """
    kind = "grid" if grid is not None else "image" if len(shape) == 3 else "vector"
    size = int(np.prod(shape))
    for edit in edits:
        name = type(edit).__name__.lower()
        if edit.on != kind:
            raise SettingError(
                f"Case {case!r} has the edit {name!r}, which is for {edit.on}s; these observations are {kind}s."
            )
        for field, most in (("at", size), ("to", size), ("feature", size)):
            value = getattr(edit, field, None)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            if edit.on != "image" and any(not 0 <= each < most for each in values):
                raise SettingError(f"Case {case!r}: {field} of {name!r} is {value}; it must be from 0 to {most - 1}.")
        for field, most in (("rows", shape[0]), ("columns", shape[1] if len(shape) > 1 else 0)):
            box = getattr(edit, field, None)
            if box is not None and not 0 <= box[0] < box[1] <= most:
                raise SettingError(
                    f"Case {case!r}: {field} of {name!r} is {list(box)}; it must be [first, one past the last] within 0 to {most}."
                )
        for field in ("value", "object", "first", "second"):
            if not fits(given := getattr(edit, field, 0.0), dtype):
                shown = list(given) if isinstance(given, tuple) else given
                raise SettingError(
                    f"Case {case!r}: {field} of {name!r} is {shown}; the observations are {dtype}, which can't hold it."
                )
        if isinstance(edit, Fill) and len(edit.value) not in (1, shape[-1]):
            raise SettingError(
                f"Case {case!r}: value of 'fill' has {len(edit.value)} numbers; it must have 1 or {shape[-1]}."
            )


def fits(values: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` holds ``values``: integers exactly, floats as finite numbers."""
    wanted = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        held = wanted.astype(dtype)
    return bool(np.isfinite(held).all() if dtype.kind == "f" else (held.astype(np.float64) == wanted).all())


def edit_from_json(value: Any, where: str, objects: dict[str, int]) -> AnyEdit:
    """Read one edit, for example ``{"edit": "remove", "object": "goal", "when": "next_state"}``.

    Args:
        value: the JSON value.
        where: file and case, for errors.
        objects: object codes by name.

    Raises:
        SettingError: it is no edit.
    """
    if not isinstance(value, dict) or not isinstance(value.get("edit"), str) or value["edit"] not in KINDS:
        raise SettingError(
            f'{where}: each edit needs "edit": one of {", ".join(sorted(KINDS))}; got {json.dumps(value)[:80]}.'
        )
    kind = KINDS[value["edit"]]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for name, given in value.items():
        if name == "edit":
            continue
        if name not in fields:
            raise SettingError(f"{where}: {value['edit']!r} has no {name!r}; it has {', '.join(fields)}.")
        if name in ("object", "first", "second") and isinstance(given, str):
            if given not in objects:
                known = f"one of {', '.join(objects)}" if objects else "a number"
                raise SettingError(f"{where}: {name} of {value['edit']!r} is {given!r}; it must be {known}.")
            given = objects[given]
        found[name] = _typed(given, hints[name], f"{where}: {name} of {value['edit']!r}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in found]
    if missing:
        raise SettingError(f"{where}: {value['edit']!r} needs {', '.join(missing)}.")
    return kind(**found)


def _typed(value: Any, hint: Any, where: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is type(None) and value is None:
            return None
        if option is int and number and int(value) == value:
            return int(value)
        if option is float and number:
            return float(value)
        if getattr(option, "__origin__", None) is Literal and value in get_args(option):
            return value
        parts = get_args(option)
        if getattr(option, "__origin__", None) is tuple:
            items = value if isinstance(value, list) else [value] if parts[-1] is ... else None
            if items is not None and (parts[-1] is ... or len(items) == len(parts)):
                return tuple(_typed(item, parts[0], where) for item in items)
    if getattr(options[0], "__origin__", None) is Literal:
        raise SettingError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, get_args(options[0])))}.")
    kind = "a whole number" if int in options else "a number" if float in options else "a list of numbers"
    raise SettingError(f"{where} is {json.dumps(value)[:60]}; it must be {kind}.")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        SettingError: there is none, or it is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"Can't read the edits {path}: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The edits {path} are not valid JSON: {error}.") from error
