"""Edits of recorded steps, each a small dataclass: objects of grids, regions of images, features of vectors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.exchange import Change

When = Literal["both", "state", "next_state"]
"""What is edited: the observation, the next observation, or both alike."""
FRAMES = {
    "both": ("observations", "next_observations"),
    "state": ("observations",),
    "next_state": ("next_observations",),
}
Frames = tuple[Array, ...]
"""The edited observations: one array ``[n, …]``, or two for "both"."""
Many = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else (value,))
"""In JSON, one value may stand for a list of one."""

FREE = 0.0
"""Object code of a free cell."""
MOVING = 6
"""Most kinds of objects that `world_edits` edits."""
ACTOR = "agent"
"""The object that acts: there is exactly one, before and after each step."""
T = TypeVar("T")


@dataclass(frozen=True)
class Edit(ABC):
    """An edit of frames: grids ``[n, cells]``, images ``[n, height, width, channels]`` or vectors ``[n, features]``.

    ``_apply`` returns the edited frames. It may draw with the generator, the same for state and next state.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    on: ClassVar[str] = "grid"
    when: When = field(default="both", kw_only=True)

    @abstractmethod
    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames: ...


class FrameEdit(Edit):
    """An edit that does the same to each frame, whatever the other one shows."""

    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        return tuple(self._edited(frame) for frame in frames)

    @abstractmethod
    def _edited(self, frame: Array) -> Array: ...


@dataclass(frozen=True)
class Remove(FrameEdit):
    """Remove the objects with a code, everywhere or from one cell."""

    object: float
    at: int | None = None

    def _edited(self, frame: Array) -> Array:
        chosen = np.arange(frame.shape[1]) == self.at if self.at is not None else np.ones(frame.shape[1], bool)
        return np.where((frame == self.object) & chosen, FREE, frame)


@dataclass(frozen=True)
class Add(Edit):
    """Put objects on cells that are free in all frames: those ``at``, else ``count`` free ones at random (-1: all)."""

    object: float
    at: Annotated[tuple[int, ...], Many] | None = None
    count: int = 1

    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
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
class Duplicate(Edit):
    """Put one more object of a code on a free cell, in steps that show one already."""

    object: float

    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        shown, added = (frames[0] == self.object).any(1)[:, None], Add(self.object)._apply(frames, rng)
        return tuple(np.where(shown, new, old) for new, old in zip(added, frames, strict=True))


@dataclass(frozen=True)
class Move(Edit):
    """Move an object to one cell (``to``), or to a random free one. All objects of the code are removed, one is put."""

    object: float
    to: int | None = None

    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        shown = np.all([(frame == self.object).any(1) for frame in frames], 0)[:, None]
        if self.to is None:
            put = Add(self.object)._apply(frames, rng)
            places = [(new == self.object) & (old != self.object) for new, old in zip(put, frames, strict=True)]
            shown = shown & places[0].any(1)[:, None]
        else:
            places = [np.broadcast_to(np.arange(frames[0].shape[1]) == self.to, frames[0].shape)] * len(frames)
        cleared = Remove(self.object)._apply(frames, rng)
        return tuple(
            np.where(shown, np.where(place, self.object, clear), old)
            for place, clear, old in zip(places, cleared, frames, strict=True)
        )


@dataclass(frozen=True)
class Swap(FrameEdit):
    """Exchange the objects of two codes."""

    first: float
    second: float

    def _edited(self, frame: Array) -> Array:
        return np.where(frame == self.first, self.second, np.where(frame == self.second, self.first, frame))


@dataclass(frozen=True)
class ImageEdit(FrameEdit):
    """An edit of a box of images. Boxes are (first, one past the last)."""

    on: ClassVar[str] = "image"
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def _box(self) -> tuple[slice, slice, slice]:
        return slice(None), slice(*self.rows), slice(*self.columns)


@dataclass(frozen=True)
class Fill(ImageEdit):
    """Fill a box with one value per channel, or one for all."""

    value: Annotated[tuple[float, ...], Many]

    def _edited(self, frame: Array) -> Array:
        edited = frame.copy()
        edited[self._box] = np.asarray(self.value, frame.dtype)
        return edited


@dataclass(frozen=True)
class Copy(ImageEdit):
    """Copy a box to another place of the same image, ``to`` (row, column) of its upper left corner; cut off at the edge."""

    to: tuple[int, int]

    def _edited(self, frame: Array) -> Array:
        edited, box = frame.copy(), frame[self._box]
        target = edited[:, self.to[0] :, self.to[1] :]
        height, width = min(target.shape[1], box.shape[1]), min(target.shape[2], box.shape[2])
        target[:, :height, :width] = box[:, :height, :width]
        return edited


@dataclass(frozen=True)
class Blur(ImageEdit):
    """Blur a box by a Gaussian of ``sigma`` pixels, from what surrounds it too."""

    sigma: float = 3.0

    def _edited(self, frame: Array) -> Array:
        from scipy.ndimage import gaussian_filter  # a slow import that training does not need

        edited, blurred = frame.copy(), gaussian_filter(frame.astype(np.float32), (0, self.sigma, self.sigma, 0))
        edited[self._box] = (blurred.round() if frame.dtype == np.uint8 else blurred)[self._box].astype(frame.dtype)
        return edited


@dataclass(frozen=True)
class SetTo(FrameEdit):
    """Set a feature of vectors to a value."""

    on: ClassVar[str] = "vector"
    feature: int
    value: float

    def _edited(self, frame: Array) -> Array:
        edited = frame.copy()
        edited[:, self.feature] = self.value
        return edited


@dataclass(frozen=True)
class Exchange(Edit):
    """Exchange a feature of vectors with that of other steps, drawn at random."""

    on: ClassVar[str] = "vector"
    feature: int

    def _apply(self, frames: Frames, rng: np.random.Generator) -> Frames:
        order = rng.permutation(len(frames[0]))
        edited = tuple(frame.copy() for frame in frames)
        for frame, old in zip(edited, frames, strict=True):
            frame[:, self.feature] = old[order, self.feature]
        return edited


KINDS: dict[str, type[Edit]] = {
    kind.__name__.lower(): kind for kind in (Remove, Add, Duplicate, Move, Swap, Fill, Copy, Blur, SetTo, Exchange)
}


def edited(steps: Transitions, edits: Sequence[Edit], rng: np.random.Generator) -> tuple[Transitions, BoolArray]:
    """Apply ``edits`` one after another.

    Returns:
        The steps, and which of them any edit changed, ``[n]`` bool. The true rewards are unknown (NaN) then.
    """
    result, shape, flat = steps, steps.observations.shape, (len(steps), -1)
    for edit in edits:
        frames = tuple(getattr(result, name) for name in FRAMES[edit.when])
        changed = edit._apply(frames if edit.on == "image" else tuple(frame.reshape(flat) for frame in frames), rng)
        back = [new.reshape(shape).astype(steps.observations.dtype) for new in changed]
        result = result.with_(**dict(zip(FRAMES[edit.when], back, strict=True)))
    differs = [(getattr(result, name) != getattr(steps, name)).reshape(flat).any(1) for name in FRAMES["both"]]
    at = np.asarray(differs[0] | differs[1])
    return result.with_(rewards=np.where(at, np.nan, steps.rewards)), at


def check(
    edits: Sequence[Edit], shape: Sequence[int], dtype: np.dtype[Any], grid: tuple[int, int] | None, case: str
) -> None:
    """Check that ``edits`` fit observations of ``shape`` and ``dtype``.

    Raises:
        SettingError: they don't.
    """
    kind = "grid" if grid is not None else "image" if len(shape) == 3 else "vector"
    size = int(np.prod(shape))
    for edit in edits:
        name, says = type(edit).__name__.lower(), ""
        if edit.on != kind:
            raise SettingError(
                f"Case {case!r} has the edit {name!r}, which is for {edit.on}s; these observations are {kind}s."
            )
        for key, value in vars(edit).items():
            place = key in ("at", "to", "feature") and edit.on != "image" and value is not None
            if place and not all(0 <= each < size for each in np.ravel(value)):
                says = f"it must be from 0 to {size - 1}"
            elif key in ("rows", "columns") and not 0 <= value[0] < value[1] <= shape[key == "columns"]:
                says = f"it must be [first, one past the last] within 0 to {shape[key == 'columns']}"
            elif key in ("value", "object", "first", "second") and not held(value, dtype):
                says = f"the observations are {dtype}, which can't hold it"
            elif isinstance(edit, Fill) and key == "value" and len(edit.value) not in (1, shape[-1]):
                says = f"it must have 1 or {shape[-1]} numbers"
            if says:
                shown = list(value) if isinstance(value, tuple) else value
                raise SettingError(f"Case {case!r}: {key} of {name!r} is {shown}; {says}.")


def held(values: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` holds ``values``: integers exactly, floats as finite numbers."""
    wanted = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        kept = wanted.astype(dtype)
    return bool(np.isfinite(kept).all() if dtype.kind == "f" else (kept.astype(np.float64) == wanted).all())


def edit_from_json(value: Any, where: str, objects: Mapping[str, int]) -> Edit:
    """Read one edit, for example ``{"edit": "remove", "object": "goal", "when": "next_state"}``.

    ``where`` is the file and the case, for errors; ``objects`` are object codes by name.

    Raises:
        SettingError: it is no edit.
    """
    if not isinstance(value, dict) or not isinstance(value.get("edit"), str) or value["edit"] not in KINDS:
        raise SettingError(
            f'{where}: each edit needs "edit": one of {", ".join(sorted(KINDS))}; got {json.dumps(value)[:80]}.'
        )
    fields, where = {name: given for name, given in value.items() if name != "edit"}, f"{where}: {value['edit']!r}"
    for name in fields.keys() & {"object", "first", "second"}:
        if isinstance(fields[name], str):
            if fields[name] not in objects:
                known = f"one of {', '.join(objects)}" if objects else "a number"
                raise SettingError(f"{where} has {name} {fields[name]!r}; it must be {known}.")
            fields[name] = objects[fields[name]]
    return validated(KINDS[value["edit"]], fields, where)


def validated(kind: type[T], fields: Mapping[str, Any], where: str) -> T:
    """Make an object of ``kind`` from JSON values.

    Raises:
        SettingError: they are not those that it takes.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        said = []
        for each in error.errors():
            name, *deeper = each["loc"]  # with the places in lists, and the kinds that were tried
            place = ".".join([str(name), *(str(part) for part in deeper if isinstance(part, int))])
            said.append(f"{place}: {each['msg']}")
        raise SettingError(f"{where} has wrong fields. {'; '.join(dict.fromkeys(said))}.") from error


def object_codes(data: Transitions) -> list[float]:
    """Return the codes of a grid's objects, the rarest first: all but free cells and what is always at the same ones."""
    shown = np.concatenate([each.reshape(len(data), -1) for each in (data.observations, data.next_observations)])
    codes, counts = np.unique(shown, return_counts=True)
    ordered = codes[np.argsort(counts, kind="stable")]
    moving = [code for code in ordered if code != FREE and ((shown == code) != (shown[0] == code)).any()]
    return [float(code) for code in moving][:MOVING]


def world_edits(data: Transitions, names: Mapping[str, int], rng: np.random.Generator) -> Iterator[tuple[str, Change]]:
    """Yield edits of a grid that the world itself can make, by name: an object somewhere else, gone, or there twice.

    ``names`` are the codes of the objects, and ``rng`` seeds the places.
    """
    known = {float(code): name for name, code in names.items()}
    for code in object_codes(data):
        name = f"the {known[code]}" if code in known else f"object {code:g}"
        yield f"{name} is somewhere else", _seeded(Move(code), rng)
        if known.get(code) == ACTOR:
            continue
        yield f"{name} is not there", _seeded(Remove(code), rng)
        yield f"{name} disappears in the step", _seeded(Remove(code, when="next_state"), rng)
        yield f"{name} is there once more", _seeded(Add(code), rng)


def _seeded(edit: Edit, rng: np.random.Generator) -> Change:
    seed = int(rng.integers(2**31))
    return lambda own, donor: edited(own, [edit], np.random.default_rng(seed))[0]
