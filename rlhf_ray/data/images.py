"""What is an image."""

from __future__ import annotations

from typing import Any

import numpy as np

LEAST_SIDE = 16
"""Pixels of a side, at least."""


def is_image(of: Any) -> bool:
    """Whether these are images: uint8, height x width x channels, at least 16 pixels high and wide.

    Args:
        of: one observation, or a space of observations.
    """
    shape, dtype = getattr(of, "shape", None), getattr(of, "dtype", None)
    if shape is None or dtype != np.uint8 or len(shape) != 3:
        return False
    return min(shape[:2]) >= LEAST_SIDE and bool(shape[2] >= 1)
