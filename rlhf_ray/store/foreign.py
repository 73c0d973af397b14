"""Reads other projects' preference files, which are pickles, without running code from them.

Two formats are supported: imitation's `PreferenceDataset`, and the `PrefDB` of Matthew Rahtz's
learning-from-human-preferences and its descendants (``train.pkl.gz``, ``val.pkl.gz``).
"""

from __future__ import annotations

import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments

LARGEST = 8 << 30
"""Limit on a file's size in memory, in bytes, unpacked and with all its fragments. A few kB can claim any number."""

CLASSES = ("PreferenceDataset", "TrajectoryWithRew", "Trajectory", "PrefDB", "CompressedDict")
"""Classes whose attributes are read. The class name suffices, since their code is not used."""


def read(file: Path) -> tuple[str, Comparisons]:
    """Read a preference file.

    A `PrefDB` has neither actions nor true rewards: actions become 0 and rewards NaN. A segment of n frames becomes a fragment of
    n - 1 steps, with the last frame as the final observation.

    Returns:
        The origin (``imitation`` or ``drlhp``) and the comparisons.

    Raises:
        ValueError: the format is unknown, the file refers to an unexpected class, or it exceeds `LARGEST`.
    """
    content = file.read_bytes()
    room = _Room()
    try:
        found = _load(room.unpack(content, GZIP) if content[:2] == b"\x1f\x8b" else content)
        if isinstance(found, _Object) and found.kind == "PreferenceDataset":
            return "imitation", _imitation(vars(found))
        if isinstance(found, _Object) and found.kind == "PrefDB":
            return "drlhp", _drlhp(vars(found), room)
    except (pickle.UnpicklingError, EOFError, OSError, zlib.error, ArithmeticError, LookupError) as error:
        raise ValueError(f"Can't import {file}: {error}") from error
    except (TypeError, AttributeError, ValueError, MemoryError) as error:  # from a malformed pickle
        raise ValueError(f"Can't import {file}: {type(error).__name__}: {error}") from error
    raise ValueError(f"Can't import {file}: it holds neither imitation's PreferenceDataset nor a PrefDB.")


GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the gzip format."""


class _Room:
    """Tracks how much may still be unpacked: `LARGEST` bytes in total."""

    def __init__(self) -> None:
        self._left = LARGEST

    def unpack(self, content: bytes, kind: int = zlib.MAX_WBITS) -> bytes:
        """Decompress ``content``.

        Raises:
            ValueError: the result exceeds the remaining room.
            EOFError: the content is truncated.
        """
        found = bytearray()
        while content:  # a gzip file may have several members
            unpacker = zlib.decompressobj(kind)
            found += unpacker.decompress(content, self._left + 1)
            _check_size(LARGEST - self._left + len(found))
            if not unpacker.eof:
                raise EOFError("its compressed data is truncated")
            content = unpacker.unused_data.lstrip(b"\0") if kind == GZIP else b""
        self._left -= len(found)
        return bytes(found)


class _Object:
    """Stands in for an object of another project: holds its attributes, runs no code."""

    kind = ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class _Dtype:
    """Stands in for a dtype during unpickling."""

    def __init__(self, spec: str, *_: Any):
        self.value = np.dtype(str(spec))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">") and self.value.kind != "O":
            self.value = self.value.newbyteorder(state[1])


class _Array:
    """Stands in for an array during unpickling, in place of numpy's own code."""

    value: Array | list[Any]

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        self._fill(content, dtype.value, shape, "F" if fortran else "C")

    def _fill(self, content: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> _Array:
        if dtype.kind == "O":
            self.value = list(content)
        else:
            self.value = np.frombuffer(content, dtype).reshape(shape, order=order)
        return self


def _latin(text: str, encoding: str) -> bytes:
    return str(text).encode("latin1")  # how old pickles store bytes


def _frombuffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    return _Array()._fill(content, dtype.value, shape, order)


def _scalar(dtype: _Dtype, content: Any) -> Any:
    return np.frombuffer(content, dtype.value)[0]


_NUMPY = {"ndarray": _Array, "_reconstruct": _Array, "dtype": _Dtype, "_frombuffer": _frombuffer, "scalar": _scalar}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless stand-in for a name in the pickle."""
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _latin
        if name in CLASSES:
            return type(name, (_Object,), {"kind": name})  # a new class each time: a pickle may set attributes on it
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which doesn't belong in a preference file")


def _load(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content)).load()


def _imitation(found: dict[str, Any]) -> Comparisons:
    def clips(fragments: list[Any]) -> Fragments:
        n = len(fragments)
        actions = _stack([one.acts for one in fragments])
        return Fragments(
            observations=_stack([one.obs for one in fragments]),
            actions=actions.astype(np.int64 if actions.dtype.kind in "iu" else np.float32),
            rewards=_stack([one.rews for one in fragments]).astype(np.float64),
            terminated=np.array([bool(one.terminal) for one in fragments]),
            starts=np.zeros(n, np.int64),
            policy_versions=np.zeros(n, np.int64),
        )

    return _compared(clips(found["fragments1"]), clips(found["fragments2"]), _stack(found["preferences"]))


def _drlhp(found: dict[str, Any], room: _Room) -> Comparisons:
    segments = found["segments"]
    if isinstance(segments, _Object):  # each one pickled and compressed separately
        segments = {name: _load(room.unpack(content)) for name, content in vars(segments)["store"].items()}

    def clips(names: list[Any]) -> Fragments:
        # Check before building any: a file may name the same fragment any number of times.
        sizes = {name: sum(_array(frame).nbytes for frame in _frames(segments[name])) for name in set(names)}
        _check_size(sum(sizes[name] for name in names))
        observations = _stack([_stack(segments[name]) for name in names])
        n, length = len(names), observations.shape[1] - 1
        return Fragments(
            observations=observations,
            actions=np.zeros((n, length), np.int64),
            rewards=np.full((n, length), np.nan),
            terminated=np.zeros(n, bool),
            starts=np.zeros(n, np.int64),
            policy_versions=np.zeros(n, np.int64),
        )

    left, right, preferences = zip(*found["prefs"], strict=True)
    return _compared(clips(list(left)), clips(list(right)), np.stack([_stack(mu) for mu in preferences])[:, 0])


def _frames(segment: Any) -> Any:
    return segment.value if isinstance(segment, _Array) else segment


def _compared(left: Fragments, right: Fragments, preferences: Array) -> Comparisons:
    n = len(left)
    pairs = Pairs.of(Fragments.concatenate([left, right]), np.stack([np.arange(n), np.arange(n) + n], axis=1))
    return Comparisons(pairs, preferences.astype(np.float32))


def _stack(values: Any) -> Array:
    """Build an array from a stand-in, or from several of one shape."""
    if isinstance(values, _Array):
        values = values.value
    if isinstance(values, np.ndarray):
        return values
    arrays = [_array(one) for one in values]
    _check_size(sum(array.nbytes for array in arrays))
    return np.stack(arrays)


def _array(one: Any) -> Array:
    """Convert one array or number to an array. Refuses lists: nested lists of the same lists grow without bound."""
    value = one.value if isinstance(one, _Array) else one
    if not isinstance(value, np.ndarray | np.generic | int | float):
        raise ValueError(f"expected an array, found a {type(value).__name__}")
    return np.asarray(value)


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(
            f"it needs more than {LARGEST / 2**30:g} GiB in memory, the limit for imported files: split it into several files"
        )
