"""Reads other projects' pickles without running code from them.

Two formats of preferences are read: imitation's `PreferenceDataset`, and the `PrefDB` of Matthew Rahtz's
learning-from-human-preferences and its descendants (``train.pkl.gz``, ``val.pkl.gz``).

Objects become `Stored`, which holds their attributes; arrays become plain arrays of numbers. Whatever else a pickle names or calls
is a stand-in that does nothing.
"""

import io
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.spaces import of_one_choice

LARGEST = 8 << 30
"""Limit on a file's size in memory, in bytes, unpacked and with all its fragments. A few kB can claim any number."""

_MALFORMED = (TypeError, AttributeError, ValueError, MemoryError)
ERRORS = (pickle.UnpicklingError, EOFError, ArithmeticError, LookupError, *_MALFORMED)
"""What a damaged or malformed pickle raises."""


def reason(error: BaseException) -> str:
    """Describe an error of `ERRORS` in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if isinstance(error, _MALFORMED) else message


class Stored:
    """Stands in for an object of another project, or for what a function returns: holds its attributes, runs no code.

    Attributes:
        kind: the name of its class.
    """

    kind = ""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
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
        objects = dtype.value.kind == "O"
        order: Any = "F" if fortran else "C"
        self.value = list(content) if objects else np.frombuffer(content, dtype.value).reshape(shape, order=order)


def _from_buffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.__setstate__((1, shape, dtype, order == "F", content))
    return made


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "_reconstruct"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "_frombuffer"): _from_buffer,
    ("numpy", "scalar"): lambda dtype, content: np.frombuffer(content, dtype.value)[0],
    ("_codecs", "encode"): lambda text, _: str(text).encode("latin1"),  # how old pickles store bytes
}
"""What is built, by its package and name."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands in for a name in the pickle: a new class each time, since a pickle may set attributes on it."""
        known = _KNOWN.get((module.partition(".")[0], name))
        return known or type("Stored", (Stored,), {"kind": name})


def load(content: bytes) -> Any:
    """Unpickle ``content``.

    Raises:
        Exception: one of `ERRORS`.
    """
    return _Unpickler(io.BytesIO(content)).load()


def frames_of(of: Any) -> Any:
    """Return what an array's stand-in holds; anything else unchanged."""
    return of.value if isinstance(of, _Array) else of


def stack(values: Any) -> Array:
    """Build an array from a stand-in, or from several of one shape."""
    values = frames_of(values)
    if isinstance(values, np.ndarray):
        return values
    arrays = [array_of(one) for one in values]
    check_size(sum(array.nbytes for array in arrays))
    return np.stack(arrays)


def array_of(one: Any) -> Array:
    """Convert one array or number to an array. Refuses lists: nested lists of the same lists grow without bound."""
    value = frames_of(one)
    if not isinstance(value, np.ndarray | np.generic | int | float):
        raise ValueError(f"expected an array, found a {type(value).__name__}")
    return np.asarray(value)


def check_size(size: int) -> None:
    """Raise a ValueError if ``size`` is more than `LARGEST`."""
    if size > LARGEST:
        raise ValueError(
            f"it needs more than {LARGEST / 2**30:g} GiB in memory, the limit for imported files: split it into several files"
        )


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
        content_read = load(room.unpack(content, GZIP) if content[:2] == b"\x1f\x8b" else content)
        if isinstance(content_read, Stored) and content_read.kind == "PreferenceDataset":
            return "imitation", _imitation(vars(content_read))
        if isinstance(content_read, Stored) and content_read.kind == "PrefDB":
            return "drlhp", _drlhp(vars(content_read), room)
    except (*ERRORS, OSError, zlib.error) as error:
        raise ValueError(f"Can't import {file}: {reason(error)}") from error
    raise ValueError(f"Can't import {file}: it holds neither imitation's PreferenceDataset nor a PrefDB.")


GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the gzip format."""


class _Room:
    """Unpacks at most `LARGEST` bytes in total."""

    def __init__(self) -> None:
        self._left = LARGEST

    def unpack(self, content: bytes, kind: int = zlib.MAX_WBITS) -> bytes:
        """Decompress; an error of `ERRORS` if it is truncated, or exceeds the remaining room."""
        unpacked = bytearray()
        while content:  # a gzip file may have several members
            unpacker = zlib.decompressobj(kind)
            unpacked += unpacker.decompress(content, self._left + 1)
            check_size(LARGEST - self._left + len(unpacked))
            if not unpacker.eof:
                raise EOFError("its compressed data is truncated")
            content = unpacker.unused_data.lstrip(b"\0") if kind == GZIP else b""
        self._left -= len(unpacked)
        return bytes(unpacked)


def _imitation(found: dict[str, Any]) -> Comparisons:
    if not len(found["fragments1"]):
        raise ValueError("it has no comparisons")

    def stacked(fragments: list[Any]) -> Fragments:
        actions = of_one_choice(stack([one.acts for one in fragments]), axes=2)
        return _fragments(
            stack([one.obs for one in fragments]),
            actions.astype(np.int64 if actions.dtype.kind in "iu" else np.float32),
            stack([one.rews for one in fragments]).astype(np.float64),
            np.array([bool(one.terminal) for one in fragments]),
        )

    return _compared(stacked(found["fragments1"]), stacked(found["fragments2"]), stack(found["preferences"]))


def _drlhp(found: dict[str, Any], room: _Room) -> Comparisons:
    segments = found["segments"]
    if isinstance(segments, Stored):  # each one pickled and compressed separately
        segments = {name: load(room.unpack(content)) for name, content in vars(segments)["store"].items()}

    def named(names: list[Any]) -> Fragments:
        # Check before building any: a file may name the same fragment any number of times.
        sizes = {name: sum(array_of(frame).nbytes for frame in frames_of(segments[name])) for name in set(names)}
        check_size(sum(sizes[name] for name in names))
        observations = stack([stack(segments[name]) for name in names])
        shape = len(names), observations.shape[1] - 1
        return _fragments(observations, np.zeros(shape, np.int64), np.full(shape, np.nan), np.zeros(len(names), bool))

    left, right, preferences = zip(*found["prefs"], strict=True)
    return _compared(named(list(left)), named(list(right)), np.stack([stack(mu) for mu in preferences])[:, 0])


def _fragments(observations: Array, actions: Array, rewards: Array, terminated: Array) -> Fragments:
    zeros = np.zeros(len(terminated), np.int64)
    return Fragments(observations, actions, rewards, terminated, starts=zeros, policy_versions=zeros)


def _compared(left: Fragments, right: Fragments, preferences: Array) -> Comparisons:
    pairs = Pairs.of(Fragments.concatenate([left, right]), np.arange(2 * len(left)).reshape(2, -1).T)
    return Comparisons(pairs, preferences.astype(np.float32))
