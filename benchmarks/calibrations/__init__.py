"""Calibration of the tools that explain rewards: each tool on rewards whose answer is known. One file per topic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured claim.

    Attributes:
        id: short id, for example ``P1``.
        what: what was measured, with the seed if there is one.
        value: the measured value or values.
        bound: what it has to be, in words.
        passed: whether it is.
    """

    id: str
    what: str
    value: float | dict[str, float] | str
    bound: str
    passed: bool
