"""Packing: numbers as the page reads them. Compressed little-endian bytes in base64; what is lost is lost for both sides."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array

LARGEST_HALF = 65504.0
"""Largest float16."""

LEVELS = 127
"""Levels of each sign of an int8."""

MISSING = -128
"""NaN as an int8."""


def packed(kind: str, values: Array, scale: float = 1.0) -> dict[str, Any]:
    """Return ``values`` as JSON: kind (how to read the bytes), shape, scale and data."""
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    data = base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()
    return {"kind": kind, "shape": list(values.shape), "scale": scale, "data": data}


def half(values: Array) -> dict[str, Any]:
    """Pack as float16: about three digits."""
    return packed("half", np.clip(np.asarray(values, np.float64), -LARGEST_HALF, LARGEST_HALF).astype(np.float16))


def curved_levels(values: Array) -> tuple[Array, float]:
    """Return int8 levels and their scale: ``value = sign(level) * (level / 127) ** 2 * scale``, finer near 0."""
    values = np.asarray(values, np.float64)
    scale = float(np.abs(values).max(initial=0.0, where=np.isfinite(values))) or 1.0
    share = np.clip(np.nan_to_num(values) / scale, -1.0, 1.0)
    levels = np.round(np.sign(share) * np.sqrt(np.abs(share)) * LEVELS)
    return np.where(np.isnan(values), MISSING, levels).astype(np.int8), scale


def curved(values: Array) -> dict[str, Any]:
    """Pack as int8 with levels that are finer near 0: for gradients, which have heavy tails."""
    return packed("curved", *curved_levels(values))


def saturated(values: Array, limit: float) -> dict[str, Any]:
    """Pack as int8 of equal steps up to ``limit``; larger values saturate."""
    values = np.asarray(values, np.float64)
    levels = np.round(np.clip(np.nan_to_num(values, posinf=limit, neginf=-limit) / limit, -1.0, 1.0) * LEVELS)
    return packed("linear", np.where(np.isnan(values), MISSING, levels).astype(np.int8), limit)


def shares(values: Array) -> dict[str, Any]:
    """Pack numbers from 0 to 1 as uint8."""
    return packed("share", np.round(np.clip(values, 0.0, 1.0) * 255).astype(np.uint8))


def small(values: Array) -> dict[str, Any]:
    """Pack whole numbers as int16."""
    return packed("small", np.asarray(values).astype(np.int16))
