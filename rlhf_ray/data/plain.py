"""JSON-compatible values of metrics and settings. Without numpy, so that the command line's help starts fast."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Convert ``value`` recursively: numpy numbers to Python's, NaN and infinity to None."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
