"""What a reward goes with, without being changed by it: the time, and what the environment tells of its state.

These are not inputs, so nothing can be exchanged. The share of the reward's order that a number tells is the correlation ratio of
the reward's places on the number's levels, corrected for their number (Kelley 1935), on the scale of the exchanges' effects.
"""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.exchange import DIFFERENCE, LEARNED, TRUE, Order
from rlhf_ray.interpret.effects.tree import numbers_beside
from rlhf_ray.measure.intervals import MeanEstimate, jackknife_rows
from rlhf_ray.measure.statistics import constant
from rlhf_ray.study.section import Effect

LEVELS = 10


def associations(learned: FloatArray, true: FloatArray | None, data: Transitions) -> list[Effect]:
    """Measure what goes with the rewards ``[n]``: an effect for each number that is known beside the steps."""
    series = {LEARNED: _standard(learned)}
    if true is not None:
        series[TRUE] = _standard(true)
        series[DIFFERENCE] = series[LEARNED] - series[TRUE]
    found = []
    for name, values in numbers_beside(data).items():
        if constant(values) or not np.isfinite(values).all():
            continue
        levels = levels_of(values)

        def share(of: FloatArray, levels: IntArray = levels) -> MeanEstimate:
            scale = 1.0 if constant(of) else float(of.var())
            return jackknife_rows(lambda at: scale * told_by(levels[at], of[at]), data.episodes)

        found.append(Effect(name, {key: share(of) for key, of in series.items()}))
    return found


def _standard(values: FloatArray) -> FloatArray:
    places = Order(values)(values)
    return places if constant(places) else np.asarray((places - places.mean()) / places.std())


def levels_of(values: FloatArray) -> IntArray:
    """Number the levels of ``values`` ``[n]``: its values if they are few, else `LEVELS` of equal size."""
    _, which = np.unique(values, return_inverse=True)
    if which.max(initial=0) < 2 * LEVELS:
        return np.asarray(which)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, LEVELS + 1)[1:-1]))
    return np.searchsorted(edges, values, "right")


def told_by(levels: IntArray, values: FloatArray) -> float:
    """Return the share of the variance of ``values`` that the levels tell, without what they tell by chance (so 0 on average)."""
    count = len(np.unique(levels))
    total = float(values.var())
    if total <= 0 or len(values) <= count:
        return 0.0
    sizes = np.maximum(np.bincount(levels), 1)
    means = np.bincount(levels, values) / sizes
    within = float(((values - means[levels]) ** 2).mean())
    return 1 - within / total * (len(values) - 1) / (len(values) - count)
