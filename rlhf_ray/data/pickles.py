"""Reads other projects' pickles without running code from them.

Objects become `Stored`, which holds their attributes; arrays become plain arrays of numbers. Whatever else a pickle names or calls
is a stand-in that does nothing.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array

LARGEST = 8 << 30
"""Limit on a file's size in memory, in bytes, unpacked and with all its fragments. A few kB can claim any number."""

ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    MemoryError,
)
"""What a damaged or malformed pickle raises."""


def reason(error: BaseException) -> str:
    """Describe an error of `ERRORS` in one line."""
    malformed = isinstance(error, TypeError | AttributeError | ValueError | MemoryError)
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if malformed else message


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
        self._fill(content, dtype.value, shape, "F" if fortran else "C")

    def _fill(self, content: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> _Array:
        if dtype.kind == "O":
            self.value = list(content)
        else:
            self.value = np.frombuffer(content, dtype).reshape(shape, order=order)
        return self


def _frombuffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    return _Array()._fill(content, dtype.value, shape, order)


def _scalar(dtype: _Dtype, content: Any) -> Any:
    return np.frombuffer(content, dtype.value)[0]


def _latin(text: str, encoding: str) -> bytes:
    return str(text).encode("latin1")  # how old pickles store bytes


_KNOWN = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "_reconstruct"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "_frombuffer"): _frombuffer,
    ("numpy", "scalar"): _scalar,
    ("_codecs", "encode"): _latin,
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


def frames_of(segment: Any) -> Any:
    """Return the elements of an array of objects; anything else unchanged."""
    return segment.value if isinstance(segment, _Array) else segment


def stack(values: Any) -> Array:
    """Build an array from a stand-in, or from several of one shape."""
    if isinstance(values, _Array):
        values = values.value
    if isinstance(values, np.ndarray):
        return values
    arrays = [array_of(one) for one in values]
    check_size(sum(array.nbytes for array in arrays))
    return np.stack(arrays)


def array_of(one: Any) -> Array:
    """Convert one array or number to an array. Refuses lists: nested lists of the same lists grow without bound."""
    value = one.value if isinstance(one, _Array) else one
    if not isinstance(value, np.ndarray | np.generic | int | float):
        raise ValueError(f"expected an array, found a {type(value).__name__}")
    return np.asarray(value)


def check_size(size: int) -> None:
    """Raise a ValueError if ``size`` is more than `LARGEST`."""
    if size > LARGEST:
        raise ValueError(
            f"it needs more than {LARGEST / 2**30:g} GiB in memory, the limit for imported files: split it into several files"
        )
