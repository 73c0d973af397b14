"""Exchange parts of steps among steps, and measure the share of a reward's order that is lost.

A part that another step really shows stays what the environment can show, unlike grey patches or zeros. Rewards count by their
order: as the share of the data's steps with a smaller one. So effects are on one scale for every reward, whatever its units:

* ``learned``: the mean square change of the learned reward's order when the part is exchanged, relative to exchanging everything.
  Of independent inputs this is Sobol's total effect: 1 for the only input, 0 for one that the reward ignores.
* ``true``: the same of the true reward.
* ``difference``: the mean square difference of the two changes, each relative to exchanging everything: 0 if both change alike at
  each step, the larger of the two if only one changes, up to four times that if they change in opposite ways.

Intervals are jackknives over episodes. Steps of rare rewards are drawn more often, and weigh the less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.parts import StepPart, levels_of
from rlhf_ray.measure.intervals import POSITIVE, MeanEstimate, blocks, jackknife_interval, jackknife_rows
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.section import Effect

LEVELS = 10
"""Levels of a reward that pairs are drawn from with equal shares, and of a number that goes with it."""
DIFFERENCE, LEARNED, TRUE = COLUMNS = ("difference", "learned", "true")
HAIR, NUDGE = "every number, by a hair", 0.01
"""Name of the effect of nudges, and their standard deviation in those of the number."""
FEW = 20
"""A number of at most so many values is a choice, and is not nudged."""

Change = Callable[[Transitions, Transitions], Transitions]
"""Changes steps, given as many others, the donors."""


class Order:
    """Maps rewards to their place in the order of the data: the share of steps with a smaller one; half of those with the same."""

    def __init__(self, values: Array):
        self._sorted = np.sort(values)

    def __call__(self, values: Array) -> FloatArray:
        """Return the places of ``values``."""
        below, upto = (np.searchsorted(self._sorted, values, side) for side in ("left", "right"))
        return np.asarray((below + upto) / (2 * len(self._sorted)), np.float64)


class StepPairs:
    """Pairs of a step and a donor, and what exchanging parts between them does to rewards.

    Donors come from other episodes where there are several. Without ``truth``, the true reward, there are no figures of it.

    Attributes:
        own, donor: the steps of each of ``count`` pairs.
        outside: share of the changed steps that have no finite reward, by the change's name; they are left out.
    """

    def __init__(
        self,
        reward: RewardFunction,
        truth: RewardFunction | None,
        data: Transitions,
        count: int,
        rng: np.random.Generator,
    ):
        rewards = [reward] if truth is None else [reward, truth]
        values = [each.of(data) for each in rewards]
        self._rewards = [each.anywhere() for each in rewards]
        self._orders = [Order(each) for each in values]
        places = [order(each) for order, each in zip(self._orders, values, strict=True)]
        apart = [np.abs(np.subtract(*places))] if truth is not None else []  # steps that the two order differently
        chances = levelled([*values, *apart])
        own, donor = (rng.choice(len(data), count, p=chances) for _ in range(2))
        for _ in range(8):  # donors from other episodes, as far as chance allows
            same = data.episodes[own] == data.episodes[donor]
            donor[same] = rng.choice(len(data), int(same.sum()), p=chances)
        weights = 1 / (chances[own] * chances[donor])
        self.own, self.donor, self._data = data[own], data[donor], data
        self._before = [place[own] for place in places]
        self._whole = [place[donor] - place[own] for place in places]
        block = blocks(data.episodes)
        left = np.arange(int(block.max(initial=0)) + 1)[:, None]
        keep = (block[own] != left) & (block[donor] != left)
        self._keep = np.concatenate([np.ones((1, count)), keep]) * (weights / weights.mean())
        self.outside: dict[str, float] = {}
        self._sizes = np.bincount(block[own], minlength=len(left))

    def effects(self, parts: Sequence[StepPart]) -> list[Effect]:
        """Measure the exchange of each part, and of its parts alone."""
        return [self.effect(part.name, part.exchange, part.parts) for part in parts]

    def effect(self, name: str, change: Change, parts: Sequence[StepPart] = ()) -> Effect:
        """Measure what a change of the steps does."""
        return Effect(name, self._figures(name, change(self.own, self.donor)), None, tuple(self.effects(parts)))

    def hair(self, rng: np.random.Generator) -> Effect:
        """Measure what moving every number by a hair does: the control, and a row of its own, which noise in a reward tops.

        Numbers of an observation move by about a hundredth of their spread, alike before and after the step; those of images by 1.
        """
        return self.effect(HAIR, lambda own, donor: nudged(own, self._data, rng))

    def _figures(self, name: str, after: Transitions) -> dict[str, MeanEstimate]:
        with np.errstate(all="ignore"):
            values = [reward.of(after) for reward in self._rewards]
        known = np.all([np.isfinite(each) for each in values], 0)
        if not known.all():
            self.outside[name] = float(1 - known.mean())
        changes = [
            np.where(known, order(np.nan_to_num(each)) - before, 0.0)
            for order, each, before in zip(self._orders, values, self._before, strict=True)
        ]
        squares = [self._keep @ change**2 for change in changes]
        wholes = [self._keep @ (known * whole**2) for whole in self._whole]
        ratios = [_ratio(square, whole) for square, whole in zip(squares, wholes, strict=True)]
        found = dict(zip((LEARNED, TRUE), map(self._estimate, ratios), strict=False))
        if len(changes) == 2:
            shared = _ratio(self._keep @ (changes[0] * changes[1]), np.sqrt(wholes[0] * wholes[1]))
            found[DIFFERENCE] = self._estimate(np.maximum(ratios[0] + ratios[1] - 2 * shared, 0.0))
        return found

    def _estimate(self, ratios: FloatArray) -> MeanEstimate:
        value = round(float(ratios[0]), 12)
        return MeanEstimate(value, *jackknife_interval(value, np.round(ratios[1:], 12), self._sizes, POSITIVE))


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    """Divide; a reward that is the same on all steps has no order to lose."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def levelled(kinds: Sequence[FloatArray]) -> FloatArray:
    """Return the chances of drawing each step: one part uniform, and for each of ``kinds`` one with equal shares by level."""
    n = len(kinds[0])
    chances = np.full(n, 1 / n)
    for values in kinds:
        span = float(np.ptp(values))
        level = np.zeros(n, int) if span <= 0 else np.minimum((values - values.min()) / span * LEVELS, LEVELS - 1)
        _, which, sizes = np.unique(level.astype(int), return_inverse=True, return_counts=True)
        chances += 1 / sizes[which] / len(sizes)
    return np.asarray(chances / chances.sum(), np.float64)


def nudged(steps: Transitions, data: Transitions, rng: np.random.Generator) -> Transitions:
    """Return ``steps`` with each number of their observations moved by a hair, within the range of ``data``; codes stay."""
    seen = data.observations
    if seen.dtype == np.uint8 and seen.ndim == 4:
        by = rng.integers(-1, 2, steps.observations.shape)
    elif seen.dtype.kind == "f" and len(seen) > 1:
        many = np.array([len(np.unique(column)) > FEW for column in seen.reshape(len(seen), -1).T])
        spread = NUDGE * seen.std(0, dtype=np.float64) * many.reshape(seen.shape[1:])
        by = rng.normal(size=steps.observations.shape) * spread
    else:
        return steps
    both = seen, data.next_observations
    low, high = np.minimum(*(each.min(0) for each in both)), np.maximum(*(each.max(0) for each in both))
    moved = {
        name: np.clip(getattr(steps, name).astype(np.float64) + by, low, high).astype(seen.dtype)
        for name in ("observations", "next_observations")
    }
    return steps.with_(**moved)


def numbers_beside(data: Transitions) -> dict[str, FloatArray]:
    """Return what is known of each step beside what the reward sees: its time, and what the environment tells of its state."""
    found: dict[str, FloatArray] = {"the step of the episode": data.steps.astype(np.float64)}
    for name, values in data.columns.items():
        column: Array = np.asarray(values)
        if name.startswith("state.") and column.ndim == 1 and column.dtype.kind in "biuf":
            found[name.removeprefix("state.").replace("_", " ")] = column.astype(np.float64)
    return found


def associations(learned: FloatArray, true: FloatArray | None, data: Transitions) -> list[Effect]:
    """Measure what goes with the rewards ``[n]``, without being exchanged: an effect for each of `numbers_beside`.

    The share of the reward's order that a number tells is the correlation ratio of the reward's places on the number's levels,
    corrected for their number (Kelley 1935), on the scale of the exchanges' effects.
    """
    series = {LEARNED: _standard(learned)}
    if true is not None:
        series[TRUE] = _standard(true)
        series[DIFFERENCE] = series[LEARNED] - series[TRUE]
    found = []
    for name, values in numbers_beside(data).items():
        if constant(values) or not np.isfinite(values).all():
            continue
        levels = levels_of(values, LEVELS, 2 * LEVELS)

        def share(of: FloatArray, levels: IntArray = levels) -> MeanEstimate:
            scale = 1.0 if constant(of) else float(of.var())
            return jackknife_rows(lambda at: scale * told_by(levels[at], of[at]), data.episodes)

        found.append(Effect(name, {key: share(of) for key, of in series.items()}))
    return found


def _standard(values: FloatArray) -> FloatArray:
    places = Order(values)(values)
    return places if constant(places) else np.asarray((places - places.mean()) / places.std())


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
