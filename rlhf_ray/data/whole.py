"""Whole numbers as people write them: 100000, 100_000 or 1e5."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

LARGEST = 2**63 - 1
"""Whole numbers are at most so large, with either sign: what arrays hold, and floats reach."""


def whole_number(text: str) -> int:
    """Parse a whole number. Exact, also above 2**53.

    Raises:
        ValueError: it is none (``1.5``, ``1e-3``), is larger than `LARGEST`, or has a decimal point without an exponent (``3.0``,
            which may be a share).
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if number.is_finite() and ("." not in text or "e" in text.lower()):
        if abs(number) > LARGEST:
            raise ValueError(f"{text!r} is not a whole number of at most 2**63 - 1")
        if number == int(number):
            return int(number)
    raise ValueError(f"{text!r} is not a whole number")
