"""Other projects' preference files, which are pickles, read without running anything that is in them.

Two kinds are known: the `PreferenceDataset` that imitation saves, and the `PrefDB` of Matthew Rahtz's
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
"""Bytes that a file may come to in memory: what is packed in it, and the clips that it names. A few kB can claim any number."""

CLASSES = ("PreferenceDataset", "TrajectoryWithRew", "Trajectory", "PrefDB", "CompressedDict")
"""Classes whose attributes are read; what they are called tells enough, since their code is not used."""


def read(file: Path) -> tuple[str, Comparisons]:
    """Where the preferences come from (``imitation`` or ``drlhp``), and the preferences.

    A `PrefDB` has neither actions nor true rewards: actions become 0 and rewards NaN. Its segments of n frames become
    fragments of n - 1 steps, whose last frame is the observation after the last step.

    Raises:
        ValueError: the file is neither, or names anything that has no place in one of them, or comes to more than `LARGEST`.
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
        raise ValueError(f"{file} cannot be imported: {error}") from error
    except (TypeError, AttributeError, ValueError, MemoryError) as error:  # of a pickle that is put together oddly
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    raise ValueError(f"{file} cannot be imported: it holds neither imitation's PreferenceDataset nor a PrefDB.")


GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls gzip's format."""


class _Room:
    """How much may still be unpacked: `LARGEST` bytes in all."""

    def __init__(self) -> None:
        self._left = LARGEST

    def unpack(self, content: bytes, kind: int = zlib.MAX_WBITS) -> bytes:
        """What is compressed in ``content``.

        Raises:
            ValueError: that is more than there is room for.
            EOFError: it is cut off.
        """
        found = bytearray()
        while content:  # a gzip file may have several parts
            unpacker = zlib.decompressobj(kind)
            found += unpacker.decompress(content, self._left + 1)
            _check_size(LARGEST - self._left + len(found))
            if not unpacker.eof:
                raise EOFError("what is compressed in it is cut off")
            content = unpacker.unused_data.lstrip(b"\0") if kind == GZIP else b""
        self._left -= len(found)
        return bytes(found)


class _Object:
    """Stands in for an object of another project: its attributes and nothing else."""

    kind = ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class _Dtype:
    """Stands in for a dtype while it is being unpickled."""

    def __init__(self, spec: str, *_: Any):
        self.value = np.dtype(str(spec))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">") and self.value.kind != "O":
            self.value = self.value.newbyteorder(state[1])


class _Array:
    """Stands in for an array while it is being unpickled. numpy's own unpickling is not used."""

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
    return str(text).encode("latin1")  # how old pickles hold bytes


def _frombuffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    return _Array()._fill(content, dtype.value, shape, order)


def _scalar(dtype: _Dtype, content: Any) -> Any:
    return np.frombuffer(content, dtype.value)[0]


_NUMPY = {"ndarray": _Array, "_reconstruct": _Array, "dtype": _Dtype, "_frombuffer": _frombuffer, "scalar": _scalar}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Something harmless in the place of what the pickle names."""
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _latin
        if name in CLASSES:
            return type(name, (_Object,), {"kind": name})  # a new one each time: a pickle may set attributes on it
        raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in a preference file")


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
    if isinstance(segments, _Object):  # each one pickled and compressed by itself
        segments = {name: _load(room.unpack(content)) for name, content in vars(segments)["store"].items()}

    def clips(names: list[Any]) -> Fragments:
        # Before any is made: the same clip may be named any number of times.
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
    """An array out of what stands for one, or for several of one shape."""
    if isinstance(values, _Array):
        values = values.value
    if isinstance(values, np.ndarray):
        return values
    arrays = [_array(one) for one in values]
    _check_size(sum(array.nbytes for array in arrays))
    return np.stack(arrays)


def _array(one: Any) -> Array:
    """One array or number as an array. Lists are refused: lists of lists of the same lists have no end."""
    value = one.value if isinstance(one, _Array) else one
    if not isinstance(value, np.ndarray | np.generic | int | float):
        raise ValueError(f"there is a {type(value).__name__} in the place of an array")
    return np.asarray(value)


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(
            f"it comes to more than {LARGEST / 2**30:g} GiB in memory, the limit for files of others: split it into several"
        )
