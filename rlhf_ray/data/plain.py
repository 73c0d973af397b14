"""Plain values: what JSON can hold, of metrics and settings. Without numpy, which the command line's help does without."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """``value`` with numpy's numbers as Python's and those that are not finite as None, all the way down."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
