"""Kinds of steps on which a reward differs from what steps of the same true reward get elsewhere: where it is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.interpret.reward.summaries import of_observations
from rlhf_ray.measure.statistics import constant, spearman
from rlhf_ray.study.figures import DRAWN

MOST = 3
"""Most strata: each further one is chosen among what the earlier ones leave."""
GAP, ERRORS = 0.5, 6.0
"""A stratum differs by half a standard deviation of the reward at least, and by six standard errors: it is the largest of some
million pairs of conditions with bounds, of which five are chance."""
FEWEST, SMALLEST, LARGEST = 10, 0.002, 0.6
"""Steps, and shares of all steps, that a condition has at least and at most. Among thousands of conditions, some hold on five steps
that are alike by chance; beyond the largest share, it is the other steps that differ."""
TRUTH = "the true reward"
TAILS = (0.01, 0.03, *(0.05 * number for number in range(1, 11)))
"""Shares of the steps at either end of a number that are conditions: the search begins with these."""
BOUNDS = 100
"""Places that a chosen condition's bounds are then moved to: it is right about to a hundredth of the steps."""
SECOND = 1.2
"""Factor by which a second condition must raise what the first explains, to be named."""
FOLLOWS = 0.2
"""Share of the reward's variance outside the strata that the true reward explains there at least, unless what is left there is less
than this share of all. Else no step gets what its true reward usually brings, and no kind of step is an exception."""
DRAWS = 200
"""Draws of a gap's bootstrap over episodes."""
SAME_TRUTH, SUPPORTED = 0.01, 0.95
"""Share of the true reward's range within which others have the same; share of a stratum's steps that must have such others."""
ONE_THING = 0.5
"""Share of the steps of two strata, taken together, that both have, from which they are one thing told twice."""
ENOUGH = 0.05
"""Share of the reward's variance that strata may leave to need no shaping beside them: a bonus for the end is shaping, too."""
NOTHING_LEFT = 0.005
"""Share of the variance that is too little to tell the true reward by: smooth data let a potential stand for nearly any reward."""
SIMPLER = 0.5
"""The reward is compared less a fitted shaping if that leaves at most half of what strata alone leave, and of what shaping and
strata leave without the true reward: shaping can stand for much that is none."""


@dataclass(frozen=True)
class Stratum:
    """Steps on which the reward differs from what steps of the same true reward usually get.

    Attributes:
        condition: what these steps have in common, in words: "where …".
        steps: their number.
        share: their share of the data.
        given: mean reward.
        usual: mean reward of all other steps with the same true rewards.
        truth: mean true reward.
        gap: ``given - usual``, in standard deviations of the reward, with its interval over the episodes that have such steps.
        agreement: rank correlation with the true reward on these steps; None if either is constant there.
        chosen: which steps, ``[n]`` bool.
    """

    condition: str
    steps: int
    share: float
    given: float
    usual: float
    truth: float
    gap: OverEpisodes
    agreement: float | None
    chosen: BoolArray = field(metadata=DRAWN)


@dataclass(frozen=True)
class Steps:
    """The steps to search, and what strata may be conditions on.

    Attributes:
        data: the steps.
        regions: parts of the observations; None for tables.
        ignored: names of inputs that the reward ignores.
        words: names of object codes, for grids.
    """

    data: Transitions
    regions: Regions | None
    ignored: Sequence[str] = ()
    words: Mapping[float, str] = field(default_factory=dict)


def worst(
    given: FloatArray, usual: FloatArray, steps: Steps, shaping: FloatArray | None = None
) -> tuple[tuple[Stratum, ...], bool]:
    """Find up to `MOST` strata that explain most of the difference, each by one condition or two.

    Args:
        given: the rewards, ``[n]``.
        usual: what steps of the same true rewards usually get, ``[n]``.
        steps: the steps.
        shaping: what one unit of each feature of a potential adds to the rewards, ``[n, k]``; None: shaping explains nothing.

    Returns:
        The strata, the worst first, and whether they are of the reward less the shaping that is fitted beside them.
    """
    conditions = conditions_on(steps) if given.std() > 1e-12 else []
    if not conditions:
        return (), False
    steady = constant(steps.data.rewards)
    error: FloatArray = given - usual
    fit = _search(_Fit(error), conditions, float(given.std()))
    if fit.found and not steady:  # what is usual was told by all steps, also by those that are wrong
        line = np.stack([np.ones(len(given)), steps.data.rewards, *(at for _, at in fit.found)], 1)
        weights = _weights(line, given)
        left = given - line @ weights
        if left @ left < SIMPLER * fit.left @ fit.left:
            fit.left, error = left, given - weights[0] - weights[1] * steps.data.rewards
    enough = float(fit.left @ fit.left) <= ENOUGH * len(given) * given.var()
    unshaped = (
        None if shaping is None or steady or enough else _unshaped(given, shaping, steps.data.rewards, conditions, fit)
    )
    if unshaped is not None:
        given, error, fit = unshaped
    elif not steady:
        outside = ~np.any([np.zeros(len(given), bool), *(at for _, at in fit.found)], 0)
        apart = float(error[outside].var()) if outside.any() else 0.0
        if apart > (1 - FOLLOWS) * given[outside].var() and apart > FOLLOWS * given.var():
            return (), False
    told = [_stratum(*each, given, steps.data) for each in fit.found]
    sure = [each for each in told if each is not None and _is_sure(each.gap) and not _of_truth(each.condition)]
    return tuple(_apart(sure)), unshaped is not None


def _of_truth(condition: str) -> bool:
    """Return whether a condition is on the true reward alone: no others have the same, so it tells of another shape."""
    return condition.startswith(f"{TRUTH} is ") and condition.count(" is ") == condition.count(TRUTH)


def _apart(strata: Sequence[Stratum]) -> list[Stratum]:
    """Return the strata that are not mostly another one before them."""
    kept: list[Stratum] = []
    for each in strata:
        shared = [(each.chosen & other.chosen).sum() / (each.chosen | other.chosen).sum() for other in kept]
        if all(share < ONE_THING for share in shared):
            kept.append(each)
    return kept


def _is_sure(gap: OverEpisodes) -> bool:
    """Return whether a gap is large, and has one sign in several episodes."""
    return abs(gap.value) >= GAP and (gap.low > 0 or gap.high < 0)


def _unshaped(
    given: FloatArray, shaping: FloatArray, truth: FloatArray, conditions: Sequence[Condition], plain: _Fit
) -> tuple[FloatArray, FloatArray, _Fit] | None:
    """Fit shaping, the true reward and strata together.

    Returns:
        The rewards less the shaping, what the true reward does not explain of them, and the fit; None if ``plain``, strata
        alone, or shaping and strata without the true reward do as well.
    """
    design = np.concatenate([np.ones((len(given), 1)), truth[:, None], shaping], 1)
    fit = _search(_Fit(given, design), conditions, float((given - shaping @ _weights(design, given)[2:]).std()))
    masks = [at[:, None] for _, at in fit.found]
    untrue = _Fit(given, np.concatenate([np.delete(design, 1, 1), *masks], 1))
    most = SIMPLER * min(float(each.left @ each.left) for each in (plain, untrue))
    if fit.left @ fit.left > most or most < NOTHING_LEFT * len(given) * given.var():
        return None
    weights = _weights(np.concatenate([design, *masks], 1), given)
    added = shaping @ weights[2 : design.shape[1]]
    given = given - added + added.mean()  # the level of a shaping says nothing
    return given, given - weights[0] - added.mean() - weights[1] * truth, fit


class Condition(NamedTuple):
    """A condition on steps.

    Attributes:
        name: in words.
        mask: which steps it holds on, ``[n]``.
        number: name and values of the number that it bounds; None if it bounds none.
        low, high: the bounds.
    """

    name: str
    mask: BoolArray
    number: tuple[str, FloatArray] | None = None
    low: float = -np.inf
    high: float = np.inf


class _Fit:
    """Least squares of a series on columns that are added one by one.

    Attributes:
        left: what they leave, ``[n]``.
        found: the strata among them.
    """

    def __init__(self, values: FloatArray, design: FloatArray | None = None):
        self.basis = np.zeros((len(values), 0))
        if design is not None:
            size = np.sqrt((design**2).sum(0))
            scaled = design / np.where(size > 0, size, 1)
            spreads, directions = np.linalg.eigh(scaled.T @ scaled)
            own = spreads > 1e-10 * spreads[-1]  # others are sums of these, but for rounding
            self.basis = np.asarray(scaled @ directions[:, own] / np.sqrt(spreads[own]))
        self.left = values - self.basis @ (self.basis.T @ values)
        self.found: list[tuple[str, BoolArray]] = []

    def effects(self, masks: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the weight that each of ``masks`` ``[m, n]`` would get, and its number of steps less what others stand for."""
        rows = masks.astype(np.float64)
        sizes = rows.sum(1) - ((rows @ self.basis) ** 2).sum(1)
        enough = sizes >= FEWEST
        return np.where(enough, rows @ self.left, 0) / np.where(enough, sizes, 1), np.where(enough, sizes, 0)

    def add(self, name: str, mask: BoolArray) -> None:
        """Add a stratum."""
        own = mask - self.basis @ (self.basis.T @ mask)
        own /= np.sqrt(own @ own)
        self.left = self.left - own * (own @ self.left)
        self.basis = np.concatenate([self.basis, own[:, None]], 1)
        self.found.append((name, mask))


def _weights(design: FloatArray, values: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.lstsq(design, values, rcond=1e-6)[0])


def _search(fit: _Fit, conditions: Sequence[Condition], spread: float) -> _Fit:
    """Add strata to the fit, each the one that explains most of what is left."""
    masks = np.stack([each.mask for each in conditions])
    for _ in range(MOST):
        # conditions that together explain most; if those are weak, the ones that are clear on their own
        chosen = (_strongest(fit, conditions, masks, least * spread) for least in (0.0, GAP))
        clear = next((each for each in chosen if each is not None and _is_clear(fit, each.mask, spread)), None)
        if clear is None:
            break
        fit.add(clear.name, clear.mask)
    return fit


def _strongest(fit: _Fit, conditions: Sequence[Condition], masks: BoolArray, least: float) -> Condition | None:
    """Return the condition that explains most of the squared error, or it and a second one; their effect is at least ``least``."""
    at, explains = _best(fit, masks, least)
    if explains <= 0:
        return None
    first = conditions[at]
    at, by_both = _best(fit, masks & first.mask, 0.0)
    if by_both <= SECOND * explains:
        return _finer(fit, first, np.ones(masks.shape[1], bool))
    first = _finer(fit, first, conditions[at].mask)
    second = _finer(fit, conditions[at], first.mask)
    return Condition(f"{first.name} and {second.name}", first.mask & second.mask)


def _finer(fit: _Fit, condition: Condition, within: BoolArray) -> Condition:
    return moved(condition, within, lambda masks: _best(fit, masks, 0.0)[0])


def moved(condition: Condition, within: BoolArray, best: Callable[[BoolArray], int]) -> Condition:
    """Move a condition's bounds to where it is best ``within`` some steps; ``best`` returns the best of masks ``[m, n]``."""
    if condition.number is None:
        return condition
    name, values = condition.number
    low, high = condition.low, condition.high
    places = np.unique(np.quantile(values[within], np.linspace(0, 1, BOUNDS + 1)))
    if np.isfinite(low):
        low = float(places[best(_small((values >= places[:, None]) & (values <= high) & within))])
    if np.isfinite(high):
        high = float(places[best(_small((values >= low) & (values <= places[:, None]) & within))])
    return _bounded(name, values, low, high)


def _small(masks: BoolArray) -> BoolArray:
    return np.asarray(masks & (masks.mean(1) <= LARGEST)[:, None])


def _bounded(name: str, values: FloatArray, low: float, high: float) -> Condition:
    below, above = f"at most {high:.3g}", f"at least {low:.3g}"
    words = (
        f"between {low:.3g} and {high:.3g}" if np.isfinite([low, high]).all() else below if np.isfinite(high) else above
    )
    return Condition(f"{name} is {words}", (values >= low) & (values <= high), (name, values), low, high)


def _best(fit: _Fit, masks: BoolArray, least: float) -> tuple[int, float]:
    weights, sizes = fit.effects(masks)
    explained = np.where(abs(weights) >= least, weights**2 * sizes, 0)
    return int(explained.argmax()), float(explained.max())


def _is_clear(fit: _Fit, mask: BoolArray, spread: float) -> bool:
    weights, sizes = fit.effects(mask[None])
    deviation = float((fit.left - weights[0] * mask)[mask].std())
    return bool(abs(weights[0]) >= max(GAP * spread, ERRORS * deviation / np.sqrt(max(sizes[0], 1))))


def _stratum(name: str, at: BoolArray, given: FloatArray, data: Transitions) -> Stratum | None:
    """Describe a stratum by all its steps, beside all others of the same true rewards; None if there are too few of those."""
    spread, count, truth = float(given.std()), int(at.sum()), data.rewards
    usual = _elsewhere(given, truth, at)
    if np.isnan(usual).mean() > 1 - SUPPORTED:
        return None
    beyond = given[at] - usual
    gap = over_episodes(lambda steps: float(np.nanmean(beyond[steps])) / spread, data.episodes[at])
    mean = float(given[at].mean())
    elsewhere = mean - gap.value * spread
    elsewhere = elsewhere if abs(elsewhere) > 1e-9 * spread else 0.0  # rounding
    agreement = None if count < 3 or constant(given[at]) or constant(truth[at]) else spearman(given[at], truth[at])
    return Stratum(name, count, count / len(at), mean, elsewhere, float(truth[at].mean()), gap, agreement, at)


def _elsewhere(given: FloatArray, truth: FloatArray, at: BoolArray) -> FloatArray:
    """Return the mean reward of the other steps with the true reward of each step ``at``, ``[at.sum()]``; NaN without any."""
    order = np.argsort(truth[~at], kind="stable")
    true, near = truth[~at][order], SAME_TRUTH * np.ptp(truth)
    sums = np.concatenate([[0.0], np.cumsum(given[~at][order])])
    first, last = np.searchsorted(true, truth[at] - near), np.searchsorted(true, truth[at] + near, "right")
    with np.errstate(invalid="ignore"):
        return np.asarray((sums[last] - sums[first]) / np.where(last > first, last - first, np.nan))


def conditions_on(steps: Steps) -> list[Condition]:
    """Return conditions that neither hold nor fail nearly everywhere, and on nothing that the reward ignores."""
    n = len(steps.data)
    silent = [f" in {side}" for side in ("the state", "the next state") if side in steps.ignored]
    least, most = max(FEWEST, SMALLEST * n), LARGEST * n
    all_of_them = _conditions(steps.data, steps.regions, steps.words)
    told = (each for each in all_of_them if not (len(silent) == 1 and silent[0] in each.name))
    return [each for each in told if least <= each.mask.sum() <= most]


def _conditions(data: Transitions, regions: Regions | None, words: Mapping[float, str]) -> Iterator[Condition]:
    """Yield conditions on steps: events, actions, time, what regions show or change, and recorded state."""
    last = np.append(data.episodes[1:] != data.episodes[:-1], True)
    yield Condition("the step terminates the episode", data.terminated)
    yield Condition("the step is the last of its episode", last)
    yield Condition("the step is the first of its episode", data.steps == 0)
    flat = [each.reshape(len(data), -1) for each in (data.observations, data.next_observations)]
    yield Condition("the observation does not change", (flat[0] == flat[1]).all(1))
    yield from _by_value(TRUTH, data.rewards)
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
) -> Iterator[Condition]:
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
                one_number = regions.kind != "patch" or i >= len(regions) - regions.planes
                label = f"{name} {when}" if one_number else f"the mean of {name} {when}"
                yield from _by_value(label, shown[:, i], words=words if regions.kind == "cell" else {})
        if regions.kind != "feature":
            yield Condition(f"{name} changes", (flat[0] != flat[1])[:, regions.masks[i].reshape(-1)].any(1))


def _by_value(name: str, of: Array, values: int = 8, words: Mapping[float, str] | None = None) -> Iterator[Condition]:
    """Yield conditions on a number: each value if there are few, otherwise its tails, and the tenths between."""
    found = np.unique(of)
    if len(found) < 2:
        return
    if len(found) <= values:
        for value in found:
            yield Condition(f"{name} is {(words or {}).get(float(value), f'{value:.4g}')}", of == value)
        return
    of = of.astype(np.float64)
    for share in TAILS:
        low, high = np.quantile(of, [share, 1 - share])
        yield _bounded(name, of, -np.inf, low)
        yield _bounded(name, of, high, np.inf)
    for low, high in itertools.combinations(np.quantile(of, np.linspace(0.1, 0.9, 9)), 2):
        if low < high:
            yield _bounded(name, of, low, high)
