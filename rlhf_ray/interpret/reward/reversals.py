"""A kind of step on which a reward has the true order backwards, although it has it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.isotonic import isotonic_regression

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.strata import TRUTH, Condition, Steps, conditions_on, moved
from rlhf_ray.measure.intervals import CORRELATION
from rlhf_ray.measure.statistics import spearman
from rlhf_ray.study.figures import DRAWN

CLEAR = 0.5
"""Rank correlation with the true reward: with its whole interval below minus this on such steps, and above it on all others."""
BETTER = 1.2
"""Factor by which a falling line must explain more than any level does: else such steps get too much or too little."""
DRAWS = 200
HUNDREDTHS, EDGE, FEWEST_LEVELS = 100, 2, 20
"""Levels of the true reward between which a turn is sought, not at the outermost ones; with fewer levels, none is."""
STRAIGHT = 0.5
"""Share of the squared error of a reward that only rises that a turn must leave at most."""
COVERED = 0.9
"""Share of the steps of that one value that a kind of step must have."""
VALUES, LEAST_SHARE, PURE, FOLLOWS = 20, 0.03, 0.995, 0.3
"""A reward of fewer values has the same ones anyway; share of steps with one value; share of a kind's steps that have it, as bounds
are found to a hundredth of the steps; least rank correlation with the true reward on all other steps."""


@dataclass(frozen=True)
class Reversal:
    """Steps on which a reward falls with the true one.

    Attributes:
        condition: what these steps have in common, in words.
        share: their share of the data.
        agreement: rank correlation with the true reward on them.
        elsewhere: on all others.
        chosen: which steps, ``[n]`` bool.
    """

    condition: str
    share: float
    agreement: OverEpisodes
    elsewhere: OverEpisodes
    chosen: BoolArray = field(metadata=DRAWN)


@dataclass(frozen=True)
class Blind:
    """Steps that all get the same reward although their true rewards differ.

    Attributes:
        condition: what these steps have in common, in words.
        value: the reward.
        share: their share of the data.
        low, high: 5 % and 95 % quantiles of their true rewards.
        chosen: which steps, ``[n]`` bool.
    """

    condition: str
    value: float
    share: float
    low: float
    high: float
    chosen: BoolArray = field(metadata=DRAWN)


def reversed_where(given: FloatArray, usual: FloatArray, steps: Steps) -> Reversal | None:
    """Find the condition on whose steps a falling line of ``usual`` explains most of the difference from it.

    Args:
        given: the rewards, ``[n]``.
        usual: what steps of the same true rewards usually get, ``[n]``.
        steps: the steps.
    """
    truth = steps.data.rewards
    if (at := _turn(given, truth)) is not None and (turned := _reversal(*at, given, steps)) is not None:
        return turned
    conditions: Sequence[Condition] = conditions_on(steps) if np.ptp(given) > 0 and np.ptp(usual) > 0 else []
    if not conditions:
        return None

    def explained(masks: BoolArray) -> FloatArray:
        by_level, by_line = _explained(given, usual, masks)
        return np.where(by_line > BETTER * by_level, by_line, 0)

    masks = np.stack([each.mask for each in conditions])
    levels = _explained(given, usual, masks)[0].max()
    gains = explained(masks)
    best = int(gains.argmax())
    if gains[best] <= BETTER * levels:
        return None
    found = moved(conditions[best], np.ones(len(given), bool), lambda masks: int(explained(masks).argmax()))

    return _reversal(found.name, found.mask, given, steps)


def _reversal(name: str, mask: BoolArray, given: FloatArray, steps: Steps) -> Reversal | None:
    truth = steps.data.rewards

    def agreement(at: BoolArray) -> OverEpisodes:
        def figure(drawn: IntArray) -> float:
            return spearman(given[at][drawn], truth[at][drawn], 0.0)

        return over_episodes(figure, steps.data.episodes[at], CORRELATION)

    there, elsewhere = agreement(mask), agreement(~mask)
    if not (there.below(-CLEAR) and elsewhere.beyond(CLEAR)) or np.isnan(there.low):
        return None
    return Reversal(name, float(mask.mean()), there, elsewhere, mask)


def _turn(given: FloatArray, truth: FloatArray) -> tuple[str, BoolArray] | None:
    """Find the true reward at which a reward that rises with it begins to fall, or one that falls to rise, if there is one.

    Of all hundredths of the steps, it is the one at which a rising and a falling step function are nearest to the reward.
    """
    cuts = np.unique(np.quantile(truth, np.linspace(0, 1, HUNDREDTHS + 1)[1:-1]))
    which = np.searchsorted(cuts, truth, "right")
    count = np.bincount(which, minlength=len(cuts) + 1)
    if len(cuts) < FEWEST_LEVELS:
        return None
    means = np.bincount(which, given, len(count)) / np.maximum(count, 1)

    def error(of: slice, rising: bool) -> float:
        fitted = isotonic_regression(means[of], sample_weight=np.maximum(count[of], 1e-9), increasing=rising)
        return float(count[of] @ (means[of] - fitted) ** 2)

    places = range(EDGE, len(cuts) - EDGE)
    found = min(
        (error(slice(at + 1), below) + error(slice(at + 1, None), not below), at, below)
        for at in places
        for below in (True, False)
    )
    if found[0] > STRAIGHT * error(slice(None), True):
        return None
    _, at, rises_below = found
    above = truth >= cuts[at]
    if rises_below:
        return f"the true reward is at least {cuts[at]:.3g}", above
    return f"the true reward is below {cuts[at]:.3g}", ~above


def same_where(given: FloatArray, steps: Steps) -> Blind | None:
    """Find the largest kind of step on which a reward of many values gives one, although true rewards differ there."""
    truth = steps.data.rewards
    values, which, counts = np.unique(np.round(given, 9), return_inverse=True, return_counts=True)
    equal = which == counts.argmax()
    if len(values) <= VALUES or equal.mean() < LEAST_SHARE:
        return None
    conditions = [each for each in conditions_on(steps) if TRUTH not in each.name]

    def held(masks: BoolArray) -> FloatArray:
        sizes = masks.sum(1)
        return np.where((masks & equal).sum(1) >= PURE * sizes, sizes, 0)

    sizes = held(np.stack([each.mask for each in conditions])) if conditions else np.zeros(1)
    if sizes.max() < LEAST_SHARE * len(given):
        return None
    found = moved(conditions[int(sizes.argmax())], np.ones(len(given), bool), lambda masks: int(held(masks).argmax()))
    at = found.mask
    if at.sum() < COVERED * equal.sum():  # others get the same, too
        return None
    low, high = np.quantile(truth[at], [0.05, 0.95])
    follows = spearman(given[~at], truth[~at], 0.0) >= FOLLOWS  # else there is nothing to leave out
    if not follows or high - low <= 0.5 * truth.std():
        return None
    return Blind(found.name, float(values[counts.argmax()]), float(at.mean()), float(low), float(high), at)


def _explained(given: FloatArray, usual: FloatArray, masks: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return what a level, and what a falling line of ``usual``, explain of the squared difference on the steps of each mask."""
    rows = masks.astype(np.float64)
    count = np.maximum(rows.sum(1), 1)
    given, usual = given - usual.mean(), usual - usual.mean()
    g, u, gg, uu, gu = (rows @ column / count for column in (given, usual, given**2, usual**2, given * usual))
    spread, shared = uu - u**2, gu - g * u
    line = np.where(spread > 1e-12, shared**2 / np.where(spread > 1e-12, spread, 1), 0)
    before, after = gg - 2 * gu + uu, gg - g**2 - line
    return count * (g - u) ** 2, np.where(shared < 0, count * (before - after), 0)
