"""Compare a reward with the true one step by step: on which steps, and how many steps late, does it rank differently?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.exchange import split_at
from rlhf_ray.interpret.reward.lags import Lag, lag_of
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.interpret.reward.reversals import Blind, Reversal, reversed_where, same_where
from rlhf_ray.interpret.reward.strata import Steps, Stratum, worst
from rlhf_ray.measure.intervals import CORRELATION, SHARE
from rlhf_ray.measure.statistics import auc, constant, pearson, spearman
from rlhf_ray.reward.functions import RewardFunction


@dataclass(frozen=True)
class Clipped:
    """Steps that all get the same extreme reward although their true rewards differ.

    Attributes:
        end: "lowest" or "highest".
        value: the reward.
        share: share of steps that get it.
        low, high: 5 % and 95 % quantiles of their true rewards.
    """

    end: str
    value: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class TruthLevel:
    """Steps of one level of the true reward: its mean, their number, and mean and standard deviation of their reward."""

    truth: float
    steps: int
    given: float
    deviation: float


@dataclass(frozen=True)
class Comparison:
    """A reward beside the true one.

    Attributes:
        correlation: over steps (Pearson).
        agreement: rank correlation over steps (Spearman).
        auc: how well the reward tells steps of high from those of low true reward.
        lag: how it follows the true reward; None if that is the same on all steps.
        levels: by level of the true reward, the lowest first.
        flat: share of the true reward's range, by value, above which the reward no longer rises; None if it rises throughout.
        clipped: where the reward is cut off, at its lowest and highest value.
        strata: where the reward differs most, the worst first. Empty if it comes at a lag: that explains the difference.
        constant_truth: whether the true reward is the same on all steps.
        reversal: where it has the true order backwards; these steps are in no stratum.
        blind: where it is the same whatever the true reward is; these steps are in no stratum.
        unshaped: whether the strata are of the reward less shaping.
    """

    correlation: float
    agreement: float
    auc: OverEpisodes
    lag: Lag | None
    levels: tuple[TruthLevel, ...]
    flat: float | None
    clipped: tuple[Clipped, ...]
    strata: tuple[Stratum, ...]
    constant_truth: bool
    unshaped: bool = False
    reversal: Reversal | None = None
    blind: Blind | None = None

    @property
    def in_time(self) -> bool:
        """Whether it comes at the step of the true reward, as far as can be told."""
        return self.lag is None or not self.lag.off


def compare(
    reward: RewardFunction,
    data: Transitions,
    regions: Regions | None,
    ignored: Sequence[str] = (),
    objects: Mapping[str, int] | None = None,
    lag: Lag | None = None,
    shaping: FloatArray | None = None,
) -> Comparison | None:
    """Compare ``reward`` with the true rewards in ``data``.

    Args:
        reward: the reward function.
        data: the steps.
        regions: parts of the observations; None for tables.
        ignored: names of inputs that the reward ignores: no condition on them describes where it is wrong, as long as the other of
            state and next state can.
        objects: object codes by name, for grids.
        lag: how the reward follows the true one, if that is known.
        shaping: what one unit of each feature of a potential adds to each reward, ``[n, k]``, if a shaping explains any of it.

    Returns:
        None if true rewards are unknown, or there are fewer than 20 steps.
    """
    truth = data.rewards
    if len(data) < 20 or not np.isfinite(truth).all():
        return None
    given = reward.of(data)
    words = {float(code): word for word, code in (objects or {}).items()}
    steady = bool(np.ptp(truth) <= 1e-9 * max(1.0, np.abs(truth).max()))
    if lag is None and not steady:
        lag = lag_of(given, truth, data, np.random.default_rng(0))
    levels, usual = _levels(given, truth)
    in_time = lag is None or not lag.off
    steps = Steps(data, regions, ignored, words)
    reversal = reversed_where(given, usual, steps) if in_time and not steady else None
    clipped = () if steady else tuple(_clipped(given, truth))
    blind = same_where(given, steps) if in_time and not steady and not clipped else None
    rest = given
    for kind in (reversal, blind):
        rest = rest if kind is None else np.where(kind.chosen, usual, rest)
    strata, unshaped = worst(rest, usual, steps, shaping) if in_time else ((), False)
    return Comparison(
        pearson(given, truth, 0.0),
        _agreement(given, truth) or 0.0,
        _told_apart(given, truth, data.episodes),
        lag,
        levels,
        None if steady else _flat(given, truth, data.episodes),
        clipped,
        strata,
        steady,
        unshaped,
        reversal,
        blind,
    )


def _told_apart(given: FloatArray, truth: FloatArray, episodes: IntArray) -> OverEpisodes:
    high = split_at(truth)
    return over_episodes(lambda at: auc(given[at], high[at], 0.5), episodes, SHARE)


def _agreement(a: FloatArray, b: FloatArray) -> float | None:
    return None if len(a) < 3 or constant(a) or constant(b) else spearman(a, b)


def _groups(truth: FloatArray, most: int = 20) -> Array:
    """Return the number of each step's level of the true reward: its value if there are few, otherwise a quantile."""
    values, which, counts = np.unique(truth, return_inverse=True, return_counts=True)
    if len(values) <= most:
        return np.asarray(which)
    ranks = (np.cumsum(counts) - counts / 2) / len(truth)
    return np.unique((ranks * most).astype(int)[which], return_inverse=True)[1]


def _levels(given: FloatArray, truth: FloatArray) -> tuple[tuple[TruthLevel, ...], FloatArray]:
    """Return the reward by level of the true reward, and each step's usual one: medians by level, made to rise."""
    which = _groups(truth)
    at = [which == i for i in range(which.max() + 1)]
    levels = tuple(
        TruthLevel(float(truth[i].mean()), int(i.sum()), float(given[i].mean()), float(given[i].std())) for i in at
    )
    centres = np.array([level.truth for level in levels])
    medians = np.array([np.median(given[i]) for i in at])
    rising = IsotonicRegression().fit_transform(centres, medians) if len(centres) > 1 else medians
    usual = np.interp(truth, centres, rising)
    if len(centres) > 2:  # the tails lie beyond the centres of the outermost levels
        for end, inner, beyond in ((0, 2, truth < centres[0]), (-1, -3, truth > centres[-1])):
            slope = (rising[end] - rising[inner]) / (centres[end] - centres[inner])
            usual[beyond] += slope * (truth[beyond] - centres[end])
    return levels, np.asarray(usual)


def _unrelated(given: FloatArray, truth: FloatArray, episodes: IntArray, at: BoolArray) -> bool:
    """Return whether rank correlation on some steps is below 0.3 with its whole interval over episodes."""

    def agreement(drawn: IntArray) -> float:
        return spearman(given[at][drawn], truth[at][drawn], 0.0)

    return constant(given[at]) or over_episodes(agreement, episodes[at], CORRELATION).below(0.3)


def _flat(given: FloatArray, truth: FloatArray, episodes: IntArray) -> float | None:
    """Return from which true reward on the reward no longer rises, as a share of its range, if that is at most 0.8.

    In all, it rises: a reward that never follows the true one does not saturate.
    """
    span = truth.max() - truth.min()
    values = np.unique(truth)
    if len(values) < 5 or np.ptp(given) == 0:
        return None
    for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        above = truth >= truth.min() + share * span
        agreement = _agreement(given[above], truth[above]) if above.sum() >= 30 else None
        spread = float(np.ptp(np.quantile(given[above], [0.05, 0.95]))) if above.any() else np.inf
        still = (agreement is None or agreement < 0.3) and spread < 0.1 * np.ptp(given) and above.sum() >= 30
        if still and (_agreement(given, truth) or 0.0) >= 0.3 and _unrelated(given, truth, episodes, above):
            return share
    return None


def _clipped(given: FloatArray, truth: FloatArray) -> Iterator[Clipped]:
    """Find the ends at which a reward of many values gives one value to steps of clearly different true rewards."""
    values, counts = np.unique(np.round(given, 9), return_counts=True)
    if len(values) <= 20 or len(np.unique(truth)) <= 20:
        return
    for end, at in (("lowest", 0), ("highest", -1)):
        same = np.round(given, 9) == values[at]
        low, high = np.quantile(truth[same], [0.05, 0.95])
        follows = (_agreement(given[~same], truth[~same]) or 0.0) >= 0.3  # else there is nothing to cut off
        if follows and counts[at] > 0.03 * len(given) and high - low > 0.5 * truth.std():
            yield Clipped(end, float(values[at]), float(same.mean()), float(low), float(high))
