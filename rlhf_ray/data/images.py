"""Which observations count as images."""

from typing import Any

import numpy as np

LEAST_SIDE = 16
"""Minimum height and width in pixels."""


def is_image(of: Any) -> bool:
    """Return whether these are images: uint8, ``[height, width, channels]``, at least 16 pixels high and wide.

    Args:
        of: an observation or an observation space.
    """
    shape, dtype = getattr(of, "shape", None), getattr(of, "dtype", None)
    if shape is None or dtype != np.uint8 or len(shape) != 3:
        return False
    return min(shape[:2]) >= LEAST_SIDE and bool(shape[2] >= 1)
