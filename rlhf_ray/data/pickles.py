"""Reads other projects' pickles without running code from them: only what is listed here is built.

Objects become `Stored`, which holds their attributes; arrays become plain arrays of numbers. Any other class or function that a
pickle names is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array

LARGEST = 8 << 30
"""Limit on a file's size in memory, in bytes, unpacked and with all its fragments. A few kB can claim any number."""

CLASSES = ("PreferenceDataset", "TrajectoryWithRew", "Trajectory", "PrefDB", "CompressedDict")
"""Classes whose attributes are read. The class name suffices, since their code is not used."""

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


class _Anything(Stored):
    """Stands in for an object of any class, or for what a function returns: holds its attributes, if it has some."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class _Lenient(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless stand-in for any name in the pickle."""
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        return type("Other", (_Anything,), {"kind": name})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless stand-in for a name in the pickle."""
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _latin
        if name in CLASSES:
            return type(name, (Stored,), {"kind": name})  # a new class each time: a pickle may set attributes on it
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which doesn't belong in such a file")


def load(content: bytes) -> Any:
    """Unpickle ``content``.

    Raises:
        Exception: one of `ERRORS`.
    """
    return _Unpickler(io.BytesIO(content)).load()


def attributes(content: bytes) -> dict[str, Any]:
    """Unpickle an object of another project and return its attributes; stand-ins take the place of whatever it refers to.

    Raises:
        Exception: one of `ERRORS`.
    """
    found = _Lenient(io.BytesIO(content)).load()
    if not isinstance(found, Stored):
        raise ValueError(f"expected an object, found a {type(found).__name__}")
    return vars(found)


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
