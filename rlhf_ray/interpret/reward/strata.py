"""Compare a reward with the true one step by step: on which steps, and how many steps late, does it rank differently?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.isotonic import IsotonicRegression

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.exchange import split_at
from rlhf_ray.interpret.reward.lags import Lag, lag_of
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.regions import Regions
from rlhf_ray.interpret.reward.summaries import of_observations
from rlhf_ray.measure.statistics import auc, constant, pearson, spearman
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.figures import DRAWN


@dataclass(frozen=True)
class Stratum:
    """Steps on which the reward differs from what steps of the same true reward usually get.

    Attributes:
        condition: what these steps have in common, in words: "where …".
        steps: their number.
        share: their share of the data.
        given: mean reward.
        usual: mean of the usual reward of steps with the same true rewards.
        truth: mean true reward.
        gap: ``given - usual``, in standard deviations of the reward.
        agreement: rank correlation with the true reward on these steps; None if either is constant there.
        chosen: which steps, ``[n]`` bool.
    """

    condition: str
    steps: int
    share: float
    given: float
    usual: float
    truth: float
    gap: float
    agreement: float | None
    chosen: BoolArray = field(metadata=DRAWN)


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
        flat: share of the true reward's upper half, by value, above which the reward no longer rises; None if it rises throughout.
        clipped: where the reward is cut off, at its lowest and highest value.
        strata: where the reward differs most, the worst first. Empty if it comes at a lag: that explains the difference.
        constant_truth: whether the true reward is the same on all steps.
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
    return Comparison(
        pearson(given, truth, 0.0),
        _agreement(given, truth) or 0.0,
        _told_apart(given, truth, data.episodes),
        lag,
        levels,
        None if steady else _flat(given, truth),
        () if steady else tuple(_clipped(given, truth)),
        tuple(_worst(given, usual, data, regions, ignored, words)) if lag is None or not lag.off else (),
        steady,
    )


def _told_apart(given: FloatArray, truth: FloatArray, episodes: IntArray) -> OverEpisodes:
    high = split_at(truth)
    return over_episodes(lambda at: auc(given[at], high[at], 0.5), episodes, np.random.default_rng(0), 100)


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


def _flat(given: FloatArray, truth: FloatArray) -> float | None:
    """Return from which true reward on the reward no longer rises, as a share of its range, if that is at most 0.8.

    Below, it rises: a reward that never follows the true one does not saturate.
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
        if still and (_agreement(given[~above], truth[~above]) or 0.0) >= 0.3:
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
        if counts[at] > 0.03 * len(given) and high - low > 0.5 * truth.std():
            yield Clipped(end, float(values[at]), float(same.mean()), float(low), float(high))


def _worst(
    given: FloatArray,
    usual: FloatArray,
    data: Transitions,
    regions: Regions | None,
    ignored: Sequence[str],
    words: Mapping[float, str],
) -> Iterator[Stratum]:
    """Find up to three strata that explain most of the difference, each by one condition or two."""
    error = given - usual
    spread = float(given.std())
    n = len(data)
    if spread <= 1e-12:
        return
    named = {name: at for name, at in _conditions(data, regions, words) if max(5, 0.002 * n) <= at.sum() <= 0.6 * n}
    silent = [f" in {side}" for side in ("the state", "the next state") if side in ignored]
    if len(silent) == 1:
        named = {name: at for name, at in named.items() if silent[0] not in name}
    if not named:
        return
    names, masks = list(named), np.stack(list(named.values()))
    left = np.ones(n, bool)
    for _ in range(3):
        clear = False
        # conditions that together explain most; if those are weak, the ones that are clear on their own
        for least in (0.0, 0.5):
            first, at = _strongest(masks, error, left, least * spread)
            if at.sum() < 5:
                continue
            condition, where = names[first], masks[first]
            second, both = _strongest(masks, error, at)
            if _weight(error, both) > 1.2 * _weight(error, at):
                condition, where = f"{condition} and {names[second]}", masks[first] & masks[second]
            at = where  # what is said of the condition is of all its steps, also of those that an earlier one explains
            gap = float(error[at].mean()) / spread
            standard = float(error[at].std()) / np.sqrt(at.sum()) / spread
            if clear := abs(gap) >= 0.5 and abs(gap) >= 4 * standard:
                break
        if not clear:
            return
        agreement = _agreement(given[at], data.rewards[at])
        count = int(at.sum())
        mean, expected, true = (float(each[at].mean()) for each in (given, usual, data.rewards))
        yield Stratum(condition, count, count / n, mean, expected, true, gap, agreement, at)
        left &= ~at


def _weight(error: FloatArray, at: BoolArray) -> float:
    return float(error[at].sum() ** 2 / at.sum()) if at.sum() >= 5 else 0.0


def _strongest(masks: BoolArray, error: FloatArray, within: BoolArray, least: float = 0.0) -> tuple[int, BoolArray]:
    """Return the condition whose steps, among those ``within``, explain most of the squared error, and those steps.

    Their mean error must be at least ``least``.
    """
    inside = masks & within
    counts = inside.sum(1)
    means = (inside @ error) / np.maximum(counts, 1)
    weights = np.where((counts >= 5) & (abs(means) >= least), means**2 * counts, 0)
    best = int(weights.argmax())
    return best, inside[best]


def _conditions(
    data: Transitions, regions: Regions | None, words: Mapping[float, str]
) -> Iterator[tuple[str, BoolArray]]:
    """Yield conditions on steps: events, actions, time, what regions show or change, and recorded state."""
    last = np.append(data.episodes[1:] != data.episodes[:-1], True)
    yield "the step terminates the episode", data.terminated
    yield "the step is the last of its episode", last
    yield "the step is the first of its episode", data.steps == 0
    flat = [each.reshape(len(data), -1) for each in (data.observations, data.next_observations)]
    yield "the observation does not change", (flat[0] == flat[1]).all(1)
    yield from _by_value("the true reward", data.rewards)
    yield from _by_value("the step number", data.steps)
    acts = data.actions.reshape(len(data), -1)
    for i in range(acts.shape[1]):
        yield from _by_value("the action" if acts.shape[1] == 1 else f"action {i}", acts[:, i])
    for name, column in data.columns.items():
        if name.startswith("state.") and column.ndim == 1 and column.dtype.kind in "bif":
            yield from _by_value(name.removeprefix("state."), column)
    yield from _by_content(data, regions, flat, words)


def _by_content(
    data: Transitions, regions: Regions | None, flat: list[Array], words: Mapping[float, str]
) -> Iterator[tuple[str, BoolArray]]:
    if regions is None:
        for when, shown in zip(("the state", "the next state"), flat, strict=True):
            yield from _by_value(when, shown[:, 0], values=200)
        return
    if regions.kind != "feature":  # whose conditions on single features come below
        for name, values in of_observations(data, regions, words):
            yield from _by_value(name, values)
    sizes = regions.masks.reshape(len(regions), -1).sum(1)
    means = [regions.sums(each.astype(np.float32)) / sizes for each in flat]
    for i, name in enumerate(regions.names):
        for when, shown in zip(("in the state", "in the next state"), means, strict=True):
            if np.ptp(shown[:, i]) > 0:
                label = f"{name} {when}" if regions.kind != "patch" else f"the mean of {name} {when}"
                yield from _by_value(label, shown[:, i], words=words if regions.kind == "cell" else {})
        if regions.kind != "feature":
            yield f"{name} changes", (flat[0] != flat[1])[:, regions.masks[i].reshape(-1)].any(1)


def _by_value(
    name: str, of: Array, values: int = 8, words: Mapping[float, str] | None = None
) -> Iterator[tuple[str, BoolArray]]:
    """Yield conditions on a number: each value if there are few, otherwise its tails, and the tenths between."""
    found = np.unique(of)
    if len(found) < 2:
        return
    if len(found) <= values:
        for value in found:
            yield f"{name} is {(words or {}).get(float(value), f'{value:.4g}')}", of == value
        return
    of = of.astype(np.float64)
    for share in (0.01, 0.03, 0.1, 0.25, 0.5):
        low, high = np.quantile(of, [share, 1 - share])
        yield f"{name} is at most {low:.3g}", of <= low
        yield f"{name} is at least {high:.3g}", of >= high
    edges = np.quantile(of, np.linspace(0.1, 0.9, 9))
    for low, high in itertools.pairwise(edges):
        if low < high:
            yield f"{name} is between {low:.3g} and {high:.3g}", (of >= low) & (of <= high)
