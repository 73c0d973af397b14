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
from typing import Protocol

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry

POINTS = 2_000
"""Intervals of the progress over which a rate of one's own is integrated (trapezoidal rule)."""


class LabelRate(Protocol):
    """The integral of a label rate and its inverse: both rise from 0 at 0 to 1 at 1."""

    def share(self, progress: float) -> float:
        """Return the share of the labels that is due at ``progress``."""
        ...

    def progress(self, share: float) -> float:
        """Return the smallest progress at which ``share`` of the labels is due."""
        ...


class Constant:
    """The same rate throughout."""

    def share(self, progress: float) -> float:
        """See `LabelRate.share`."""
        return progress

    def progress(self, share: float) -> float:
        """See `LabelRate.progress`."""
        return share


class Hyperbolic:
    """A rate ∝ 1/(1 + st), with t the progress (Christiano et al. 2017).

    Args:
        steepness: s.
    """

    def __init__(self, steepness: float):
        self.steepness = steepness

    def share(self, progress: float) -> float:
        """See `LabelRate.share`."""
        return math.log1p(self.steepness * progress) / math.log1p(self.steepness)

    def progress(self, share: float) -> float:
        """See `LabelRate.progress`."""
        return math.expm1(share * math.log1p(self.steepness)) / self.steepness


class InverseQuadratic:
    """A rate ∝ 1/(1 + (st)²), with t the progress.

    Args:
        steepness: s.
    """

    def __init__(self, steepness: float):
        self.steepness = steepness

    def share(self, progress: float) -> float:
        """See `LabelRate.share`."""
        return math.atan(self.steepness * progress) / math.atan(self.steepness)

    def progress(self, share: float) -> float:
        """See `LabelRate.progress`."""
        return math.tan(share * math.atan(self.steepness)) / self.steepness


class Increasing:
    """A rate ∝ 1/(1 + s(1 - t)), with t the progress: `Hyperbolic` backwards, asking later.

    B-Pref's increasing schedule is T/(T - step + 1): the same shape, with s as large as the number of steps T.

    Args:
        steepness: s.
    """

    def __init__(self, steepness: float):
        self._backwards = Hyperbolic(steepness)

    def share(self, progress: float) -> float:
        """See `LabelRate.share`."""
        return 1.0 - self._backwards.share(1.0 - progress)

    def progress(self, share: float) -> float:
        """See `LabelRate.progress`."""
        return 1.0 - self._backwards.progress(1.0 - share)


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
        "constant": Constant,
        "hyperbolic": Hyperbolic,
        "inverse_quadratic": InverseQuadratic,
        "increasing": Increasing,
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
