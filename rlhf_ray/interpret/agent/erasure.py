"""Erasure: the directions that hold a concept, as many as it takes until no linear reader has any of it left.

The first direction is that of LEACE (Belrose et al. 2023), of the part of the concept that the other concepts don't tell: the
smallest change after which no linear reader tells the classes apart. A number may have each of its levels in a direction of its
own: then these follow, until held-out levels tell nothing. A concept may also be held in products: in one direction while something
else is the case, and in another otherwise. A reader of products finds that; which directions to remove for it can't be told without
removing something else, so that an effect that is absent settles nothing then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret.agent.candidates import FEWEST_OF_CLASS, filled, residual, separate_directions
from rlhf_ray.interpret.agent.story import NONE, READ
from rlhf_ray.interpret.directions import Directions, labels
from rlhf_ray.interpret.directions.components import spectrum
from rlhf_ray.interpret.directions.controls import removed_variance
from rlhf_ray.interpret.directions.labelled import direction
from rlhf_ray.measure import statistics

GONE = 0.6
"""AUC up to which a concept counts as erased: readers of shuffled labels reach it by chance (the bound of the step "concepts")."""
MOST = 4
"""Directions of a concept, at most, of at most `HALF` of the variance: the removal of more is no longer about one concept."""
PRODUCTS = 12
"""Principal axes whose products are read: 78 products; a few thousand steps determine no more."""
SAME_DIRECTION = 0.9
"""Cosine of two concepts' directions, in the metric of the values, from which on an effect may be either's."""
HALF = 0.5
"""Share of what a reader of another concept is better than chance by, from which on a removal takes that concept as well; and
share of the variance that a concept's directions may take."""
FOLLOWED = 6
"""Concepts, those without which a concept is read worst, whose pairs are asked whether it follows them: fifteen pairs."""
QUANTILES = (0.25, 0.75)
"""Further thresholds at which a number is read, beside its median; a number of at most four values is read at all of them."""


@dataclass(frozen=True)
class Classes:
    """Two classes of a concept: no and yes, or numbers up to the median and above it.

    Attributes:
        yes_no: whether it is yes or no.
        middle: the median.
        strict: whether the median itself is in the lower class.
        further: further thresholds of a number.
    """

    yes_no: bool
    middle: float
    strict: bool
    further: tuple[float, ...] = ()

    @classmethod
    def fit(cls, concept: FloatArray) -> Classes:
        """Find the border by numbers ``[n]``, of which some are known."""
        known = concept[labels.rows(concept)]
        yes_no, middle = labels.yes_no(concept), float(np.median(known))
        few = np.unique(known)[:-1] if not yes_no else np.zeros(0)
        borders = few if len(few) <= len(QUANTILES) + 1 else np.quantile(known, QUANTILES)
        return cls(yes_no, middle, bool((known > middle).any()), tuple(sorted({*borders.tolist()} - {middle})))

    def __call__(self, concept: FloatArray) -> FloatArray:
        """Return the class of each number: 0 or 1; NaN where unknown."""
        above = concept > self.middle if self.strict else concept >= self.middle
        return np.where(np.isfinite(concept), concept == 1 if self.yes_no else above, np.nan)

    def every(self, concept: FloatArray) -> FloatArray:
        """Return the class by the median, then by the further thresholds, ``[n, thresholds]``."""
        columns = [np.where(np.isfinite(concept), concept > border, np.nan) for border in self.further]
        return np.stack([self(concept), *columns], 1)


@dataclass(frozen=True)
class Neighbour:
    """Another concept that a removal may be about.

    Attributes:
        concept: its name.
        cosine: of both concepts' directions, in the metric of the values.
        lost: share of what a linear reader of the other concept is better than chance by, that the removal takes.
    """

    concept: str
    cosine: float
    lost: float


@dataclass(frozen=True)
class Erasure:
    """A concept's directions, and what their removal does to what can be read.

    Attributes:
        basis: the directions.
        auc: how well the first one's score tells the classes apart, on held-out levels.
        erased: AUC of the best reader after the removal of all of them, on held-out levels, of what other concepts don't tell.
        shared: AUC of a linear reader after it, of the concept with what other concepts tell of it: that stays.
        bound: AUC up to which it counts as erased: `GONE`, or what chance reaches with so few held-out levels.
        variance: share of the values' variance that the removal takes.
        neighbours: other concepts that the effect of a removal may be about.
        others: the concepts whose part of it is left.
        follows: concepts that are read better, without whose directions nothing reads this one; see `followed`.
        rewritten: how much of the distance between the classes a memory writes again that is played without the directions; 0 if
            nothing reads it there. See `rlhf_ray.interpret.agent.rewriting.taken_in_the_loop`.
    """

    basis: Directions
    auc: float
    erased: float
    shared: float
    bound: float
    variance: float
    neighbours: list[Neighbour]
    others: Sequence[str] = ()
    follows: Sequence[str] = ()
    rewritten: float = 0.0

    @property
    def taken(self) -> bool:
        """Whether what the memory writes again is as good as nothing."""
        return is_taken(self)

    @property
    def gone(self) -> bool:
        """Whether the concept is gone; see `is_gone`."""
        return is_gone(self)


class Readings(Protocol):
    """What is read of a concept after its removal; see `Erasure`."""

    @property
    def erased(self) -> float: ...  # noqa: D102

    @property
    def shared(self) -> float: ...  # noqa: D102

    @property
    def bound(self) -> float: ...  # noqa: D102

    @property
    def rewritten(self) -> float: ...  # noqa: D102


def is_gone(read: Readings) -> bool:
    """Return whether nothing reads a concept after its removal, and what other concepts tell of it would not do instead.

    An agent that goes by the rest errs: of two classes with an AUC of `READ`, at one step in five, which an intervention shows.
    """
    return read.erased <= read.bound and read.shared <= READ and is_taken(read)


def is_taken(read: Readings) -> bool:
    """Return whether the memory writes no more than `NONE` of a concept again: a trace, which only a reader without noise sees."""
    return read.rewritten <= NONE


@dataclass(frozen=True)
class Held:
    """What a site holds at steps, in the order of the recording, and the classes of concepts there.

    Attributes:
        values: ``[n, size]``.
        classes: ``[n, thresholds]`` by concept; see `Classes.every`.
    """

    values: FloatArray
    classes: Mapping[str, FloatArray]

    def first(self, name: str) -> FloatArray:
        """Return the classes of a concept, ``[n]``."""
        return self.classes[name][:, 0]


class Whitened:
    """The metric of values, in which they vary alike in all directions; a little more than they do, so that none is all noise."""

    def __init__(self, values: FloatArray):
        self.center, (spread, self.axes) = values.mean(0), spectrum(values)
        ridge = 1e-3 * float((spread**2).sum()) / max(values.shape[1], 1)
        self.spread = np.sqrt(spread**2 + ridge)

    def length(self, change: FloatArray) -> float:
        """Return how large a change ``[size]`` of the values is in this metric."""
        return self.along(change, change)

    def along(self, first: FloatArray, second: FloatArray) -> float:
        """Return how large a change is along another one: of two estimates of it, without what noise adds to its length."""
        one, other = (change @ self.axes.T / self.spread for change in (first, second))
        return float(_unit(one) @ other)

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return values in this metric, ``[n, axes]``."""
        whitened: FloatArray = (values - self.center) @ self.axes.T / self.spread
        return whitened

    def basis(self, first: Directions, ways: FloatArray, values: FloatArray, classes: FloatArray) -> Directions:
        """Return the directions of ``ways`` ``[k, axes]``, after the ``first``, which is the first of them."""
        more = ways[1:]
        patterns = np.concatenate([first.patterns, (more * self.spread) @ self.axes])
        filters = np.concatenate([first.filters, (more / self.spread) @ self.axes])
        name = first.names[0]
        names = [name, *(f"{name}, direction {number + 2}" for number in range(len(more)))]
        scores = (values - first.center) @ filters.T
        known, upper = np.isfinite(classes), classes == 1
        middle = 0.5 * (scores[known & upper].mean(0) + scores[known & ~upper].mean(0))
        return Directions("concept", names, first.center, patterns, filters, scores, middle)


def erasures(fit: Held, test: Held, distinct: Sequence[str], least: float) -> dict[str, Erasure]:
    """Return the erasure of each concept that its own direction reads.

    Args:
        fit: what directions are fitted to.
        test: of held-out levels.
        distinct: concepts to erase, whose parts are told apart.
        least: AUC on held-out levels that the first direction of a concept needs.
    """
    metric = Whitened(fit.values)
    sides = metric(fit.values), metric(test.values)
    apart = separate_directions(fit.values, {name: fit.first(name) for name in distinct})
    found: dict[str, Erasure] = {}
    for name in apart:
        others = [other for other in distinct if other != name]
        basis, area = apart[name], reading(apart[name], test.values, test.first(name))
        own = None if area < least else _erasure(metric, basis, area, sides, name, others, fit, test)
        if own is None:  # its own part is small: then it is read with what it shares with others
            basis = separate_directions(fit.values, {name: fit.first(name)})[name]
            area = reading(basis, test.values, test.first(name))
            own = None if area < least else _erasure(metric, basis, area, sides, name, [], fit, test)
        if own is not None:
            found[name] = own
    return found


def _erasure(
    metric: Whitened,
    basis: Directions,
    area: float,
    sides: tuple[FloatArray, FloatArray],
    name: str,
    others: Sequence[str],
    fit: Held,
    test: Held,
) -> Erasure:
    """Return the erasure that begins with a direction: of the part of the concept that ``others`` don't tell."""
    ways, erased, bound = _erase(metric, basis, sides, name, others, fit, test)
    left, target = [side - side @ ways.T @ ways for side in sides], Target.of(0, fit, test, name, ())
    shared = 0.5 if target is None else target.linear(left[0], left[1])[0]
    whole = metric.basis(basis, ways, fit.values, fit.first(name))
    variance = removed_variance(whole, range(len(whole)), fit.values)
    near = _neighbours(sides, ways, name, fit, test)
    return Erasure(whole, area, erased, shared, bound, variance, near, others)


def followed(asked: Sequence[str], names: Sequence[str], fit: Held, test: Held) -> dict[str, list[str]]:
    """Return, of each concept asked, those that are read better, one or two, without whose directions nothing reads it; else none.

    What a memory holds of it is theirs then. With more concepts, or more than half of the axes, nearly everything would go.

    Args:
        asked: some of ``names``.
        names: concepts that it may follow.
        fit: what directions are fitted to.
        test: of held-out levels.
    """
    metric = Whitened(fit.values)
    sides = metric(fit.values), metric(test.values)
    ways = {name: _unit(_pattern(sides[0], fit.first(name))) for name in names}
    known = {name: np.isfinite(test.first(name)) for name in names}
    areas = {
        name: statistics.auc(sides[1][known[name]] @ way, test.first(name)[known[name]] == 1, 0.5)
        for name, way in ways.items()
    }

    def follows(name: str) -> list[str]:
        target = Target.of(0, fit, test, name, ())
        better = [other for other in names if areas[other] > areas[name]]
        if target is None:
            return []

        def left(some: Sequence[str]) -> float:
            """Return the AUC of a reader without the directions of some concepts."""
            taken = np.linalg.qr(np.stack([ways[other] for other in some], 1))[0].T
            if len(taken) > HALF * taken.shape[1]:
                return 1.0
            return target.linear(*(side - side @ taken.T @ taken for side in sides))[0]

        alone = sorted(better, key=lambda other: left([other]))[:FOLLOWED]
        for some in ([[one] for one in alone], [list(pair) for pair in combinations(alone, 2)]):
            rest = [left(each) for each in some]
            if rest and min(rest) <= target.bound:
                return some[int(np.argmin(rest))]
        return []

    return {name: follows(name) for name in asked}


def reading(basis: Directions, values: FloatArray, classes: FloatArray) -> float:
    """Return the AUC of the first score, 0.5 to 1; 0 if only one class is there."""
    known = np.isfinite(classes)
    area = statistics.auc(basis.encode(values[known])[:, 0], classes[known] == 1, 0.0)
    return max(area, 1.0 - area) if area else 0.0


def _erase(
    metric: Whitened,
    basis: Directions,
    sides: tuple[FloatArray, FloatArray],
    name: str,
    others: Sequence[str],
    fit: Held,
    test: Held,
) -> tuple[FloatArray, float, float]:
    """Return orthonormal directions ``[k, axes]`` in the metric, the AUC of the best reader without them, and its bound."""
    ways = _unit((metric.axes @ basis.patterns[0]) / metric.spread)[None]
    columns = range(fit.classes[name].shape[1])
    targets = [each for column in columns if (each := Target.of(column, fit, test, name, others)) is not None]
    if not targets:
        return ways, 0.5, GONE
    while True:
        left = [side - side @ ways.T @ ways for side in sides]
        linear = [target.linear(*left) for target in targets]
        beyond = [area - target.bound for target, (area, _) in zip(targets, linear, strict=True)]
        worst = int(np.argmax(beyond))
        taken = float(((ways * metric.spread) ** 2).sum() / (metric.spread**2).sum())
        if beyond[worst] <= 0.0 or len(ways) == min(MOST, ways.shape[1]) or taken > HALF:
            break
        ways = np.concatenate([ways, linear[worst][1][None]])
    readings = [
        (max(area, target.by_products(*left)), target.bound) for target, (area, _) in zip(targets, linear, strict=True)
    ]
    return ways, *max(readings, key=lambda one: one[0] - one[1])


@dataclass(frozen=True)
class Target:
    """A class to read: the part of it that other concepts don't tell, where it is known."""

    own: FloatArray
    left: FloatArray
    fitted: BoolArray
    truth: BoolArray
    tested: BoolArray
    others: Sequence[FloatArray]
    bound: float

    @classmethod
    def of(cls, column: int, fit: Held, test: Held, name: str, others: Sequence[str]) -> Target | None:
        """Return the target of a threshold; None if a class is missing."""
        fitted, tested = (np.isfinite(held.classes[name][:, column]) for held in (fit, test))
        own, truth = fit.classes[name][fitted, column], test.classes[name][tested, column] == 1
        counts = ((own == 1).sum(), (own == 0).sum(), truth.sum(), (~truth).sum())
        if min(counts) < FEWEST_OF_CLASS:
            return None
        left = residual(own, [filled(fit.first(other))[fitted] for other in others])
        if float(left.var()) < 0.1 * float(own.var()):
            left, others = own - own.mean(), ()
        beside = [filled(test.first(other))[tested] for other in others]
        return cls(own, left, fitted, truth, tested, beside, max(GONE, 0.5 + _by_chance(truth)))

    def auc(self, scores: FloatArray) -> float:
        """Return how well scores ``[n]`` at the tested steps read the class, apart from what other concepts tell."""
        area = statistics.auc(residual(scores, self.others), self.truth, 0.5)
        return max(area, 1.0 - area)

    def linear(self, fitted: FloatArray, tested: FloatArray) -> tuple[float, FloatArray]:
        """Read values in the metric by a linear reader: its AUC, and its direction."""
        way = _unit(statistics.covariance(fitted[self.fitted], self.left))
        return self.auc(tested[self.tested] @ way), way

    def pattern(self, fitted: FloatArray) -> FloatArray:
        """Return how the mean of values ``[n, size]`` differs between the classes, at equal values of the other concepts."""
        own = self.own - self.own.mean()
        found: FloatArray = self.left @ fitted[self.fitted] / float(self.left @ own)
        return found

    def signed(self, fitted: FloatArray, tested: FloatArray) -> tuple[float, FloatArray]:
        """Do as `linear`, with an AUC below 0.5 where the reader errs: a reader of noise does so as often as not."""
        way = _unit(statistics.covariance(fitted[self.fitted], self.left))
        return statistics.auc(residual(tested[self.tested] @ way, self.others), self.truth, 0.5), way

    def by_products(self, fitted: FloatArray, tested: FloatArray) -> float:
        """Return the AUC of a reader of products."""
        weights = direction(products(fitted[self.fitted]), self.left, penalty=float(len(self.left)) ** 0.5)
        return self.auc(products(tested[self.tested]) @ weights)


def products(values: FloatArray) -> FloatArray:
    """Return the first axes' values and all their products, ``[n, features]``: a linear reader of these is a reader of products."""
    few = values[:, :PRODUCTS]
    one, other = np.triu_indices(few.shape[1])
    return np.concatenate([few, few[:, one] * few[:, other]], 1)


def _by_chance(truth: BoolArray) -> float:
    """Return two standard errors of the AUC by chance (Hanley and McNeil 1982), where a run of equal labels counts once."""
    starts = np.concatenate([[True], truth[1:] != truth[:-1]])
    ones, zeros = max(int(starts[truth].sum()), 1), max(int(starts[~truth].sum()), 1)
    return float(2.0 * np.sqrt((ones + zeros + 1) / (12.0 * ones * zeros)))


def _neighbours(
    sides: tuple[FloatArray, FloatArray], ways: FloatArray, name: str, fit: Held, test: Held
) -> list[Neighbour]:
    """Return the other concepts that are read as well, and whose direction is nearly the same, or half of whose reading goes too.

    The nearest come first.
    """
    left = [side - side @ ways.T @ ways for side in sides]
    own = _pattern(sides[0], fit.first(name))
    found = []
    for other in fit.classes:
        if other != name and other in test.classes:
            truth = test.first(other)
            known = np.isfinite(truth)
            if min((truth == 1).sum(), (truth == 0).sum()) < FEWEST_OF_CLASS:
                continue
            patterns = [_pattern(side, fit.first(other)) for side in (sides[0], left[0])]
            read = [
                statistics.auc(side[known] @ pattern, truth[known] == 1, 0.5) - 0.5
                for side, pattern in zip((sides[1], left[1]), patterns, strict=True)
            ]
            if read[0] + 0.5 < READ:
                continue
            lost = float(np.clip(1.0 - max(read[1], 0.0) / read[0], 0.0, 1.0))
            found.append(Neighbour(other, float(abs(_unit(own) @ _unit(patterns[0]))), lost))
    near = [one for one in found if one.cosine >= SAME_DIRECTION or one.lost >= HALF]
    return sorted(near, key=lambda one: -max(one.cosine, one.lost))


def _pattern(values: FloatArray, classes: Array) -> FloatArray:
    """Return the covariance of values and a class, ``[axes]``."""
    known = np.isfinite(classes)
    wanted = classes[known] - classes[known].mean() if known.any() else np.zeros(0)
    return statistics.covariance(values[known], wanted) / max(len(wanted), 1)


def _unit(way: FloatArray) -> FloatArray:
    return np.asarray(way / max(float(np.linalg.norm(way)), 1e-300))
