"""Label rates: how the labels after the first are distributed over the training, built in or a function of your own.

A function of your own takes the progress of the training, 0 to 1, and returns the relative rate of labels there: a number of 0 or
more. Only ratios matter: the rate is normalised to the label budget. ``preferences.schedule`` is the function, or its name
``module:Name``.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry

POINTS = 2_000
"""Intervals of the progress over which a rate of one's own is integrated (trapezoidal rule)."""


class LabelRate(Protocol):
    """The integral of a label rate and its inverse: both rise from 0 at 0 to 1 at 1."""

    @property
    def share(self) -> Callable[[float], float]:
        """Return the share of the labels that is due at a progress."""
        ...

    @property
    def progress(self) -> Callable[[float], float]:
        """Return the smallest progress at which a share of the labels is due."""
        ...


class Curve(NamedTuple):
    """A `LabelRate` of two functions."""

    share: Callable[[float], float]
    progress: Callable[[float], float]


def constant() -> LabelRate:
    """The same rate throughout."""
    return Curve(lambda progress: progress, lambda share: share)


def hyperbolic(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + st), with s the steepness and t the progress (Christiano et al. 2017)."""
    whole = math.log1p(steepness)
    return Curve(lambda t: math.log1p(steepness * t) / whole, lambda share: math.expm1(share * whole) / steepness)


def inverse_quadratic(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + (st)²), with s the steepness and t the progress."""
    whole = math.atan(steepness)
    return Curve(lambda t: math.atan(steepness * t) / whole, lambda share: math.tan(share * whole) / steepness)


def increasing(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + s(1 - t)), with s the steepness and t the progress: `hyperbolic` backwards, asking later.

    B-Pref's increasing schedule is T/(T - step + 1): the same shape, with s as large as the number of steps T.
    """
    back = hyperbolic(steepness)
    return Curve(lambda t: 1.0 - back.share(1.0 - t), lambda share: 1.0 - back.progress(1.0 - share))


class OwnRate:
    """A rate that is a function of the progress.

    Args:
        rate: progress, 0 to 1 → relative rate, 0 or more.
        name: of the function, for errors.

    Raises:
        SettingError: the function raises, or returns something else than finite numbers of 0 or more that are not all 0.
    """

    def __init__(self, rate: Callable[[float], float], name: str):
        rates: list[float] = []
        for i in range(POINTS + 1):
            progress = i / POINTS
            try:
                value = float(rate(progress))
            except Exception as error:
                raise SettingError(
                    f"preferences.schedule is {name!r}, and calling it with a progress of {progress:g} raised "
                    f"{type(error).__name__}: {error}. It takes the progress, 0 to 1, and returns the relative rate of labels."
                ) from error
            if not (math.isfinite(value) and value >= 0):
                raise SettingError(
                    f"preferences.schedule is {name!r}, which returns {value} at a progress of {progress:g}; the relative rate of "
                    "labels must be a finite number of 0 or more."
                )
            rates.append(value)
        total = list(itertools.accumulate(((a + b) / 2 for a, b in itertools.pairwise(rates)), initial=0.0))
        if not total[-1]:
            raise SettingError(
                f"preferences.schedule is {name!r}, which returns 0 at every progress; no label would be due."
            )
        self._shares = [share / total[-1] for share in total]

    def share(self, progress: float) -> float:
        """See `LabelRate.share`."""
        i = min(math.floor(progress * POINTS), POINTS - 1)
        before, after = self._shares[i : i + 2]
        return before + (after - before) * (progress * POINTS - i)

    def progress(self, share: float) -> float:
        """See `LabelRate.progress`."""
        i = max(0, bisect.bisect_left(self._shares, share) - 1)
        before, after = self._shares[i : i + 2]
        return min(1.0, (i + (share - before) / (after - before)) / POINTS) if after > before else i / POINTS


LABEL_RATES: Registry[LabelRate] = Registry(
    "preferences.schedule",
    LabelRate,
    {
        "constant": constant,
        "hyperbolic": hyperbolic,
        "inverse_quadratic": inverse_quadratic,
        "increasing": increasing,
    },
)
"""The values of ``preferences.schedule``."""


def make_rate(name: str, steepness: float) -> LabelRate:
    """Make the label rate that ``name`` stands for.

    Args:
        name: a built-in rate, or ``module:Name`` of a function progress → relative rate, of an object that can be called so, or of
            its class.
        steepness: of the built-in rates; 0.05 to 100 are useful.

    Raises:
        SettingError: there is no such rate, or the function is invalid.
    """
    if name in LABEL_RATES.parts:
        return LABEL_RATES.make(name, steepness=steepness)
    rate = LABEL_RATES.find(name)
    if inspect.isclass(rate):
        rate = rate()
    if not callable(rate):
        raise SettingError(
            f"preferences.schedule is {name!r}, which can't be called: it must be a function of the progress, 0 to 1, that "
            "returns the relative rate of labels."
        )
    return OwnRate(rate, name)
