"""Type aliases for numpy arrays, and arrays of what a user's part returns."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def numbers_of(given: object) -> npt.NDArray[np.float64] | None:
    """Return ``given``, which a user's part returned, as an array; None if it isn't one of numbers."""
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None
