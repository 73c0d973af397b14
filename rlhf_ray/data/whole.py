"""Whole numbers as people write them: 100000, 100_000 or 1e5."""

from __future__ import annotations

import re

_EXPONENT = re.compile(r"([+-]?)(\d[\d_]*)(?:\.(\d[\d_]*))?[eE]\+?(\d{1,3})")


def whole_number(text: str) -> int:
    """Parse a whole number. Exact, also above 2**53.

    Raises:
        ValueError: it is none (``1.5``, ``1e-3``), or has a decimal point without an exponent (``3.0``, which may be a share).
    """
    try:
        return int(text)
    except ValueError:
        parts = _EXPONENT.fullmatch(text.strip())
    if parts is not None:
        sign, digits, decimals, exponent = parts.groups()
        decimals = (decimals or "").replace("_", "").rstrip("0")
        if len(decimals) <= int(exponent):
            return int(f"{sign}{digits}{decimals}{'0' * (int(exponent) - len(decimals))}")
    raise ValueError(f"{text!r} is not a whole number")
