"""Exchange parts of a step with those of another step, and measure what that does to the reward.

A part of a step that another step *really shows* stays on the data's manifold by itself, unlike grey patches or zeros. Each pair
of a step ("own") and another one ("donor") is used both ways: own with the donor's part, and donor with the own part, which is the
exchange of everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.nudges import nudged
from rlhf_ray.measure.intervals import POSITIVE, blocks, jackknife_interval
from rlhf_ray.measure.statistics import auc
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.figures import fields_of

NOTHING = 0.05
"""Parts whose exchange moves the reward less than this, relative to exchanging everything, are ignored by the reward."""
NEARLY_ALL = 0.8
"""Parts whose exchange moves a reward more than this hold nearly all that it depends on."""
LEVELS = 10
"""Reward levels that pairs are drawn from with equal shares, so that rare rewards count."""


@dataclass(frozen=True)
class StepPart:
    """A part of a step.

    Attributes:
        name: in words.
        state: the observation's part, ``[*observation_shape]`` bool; None for none of it.
        next_state: the next observation's part.
        action: whether the action belongs to it.
        done: whether the termination flag belongs to it.
    """

    name: str
    state: BoolArray | None = None
    next_state: BoolArray | None = None
    action: bool = False
    done: bool = False

    def exchange(self, own: Transitions, donor: Transitions) -> Transitions:
        """Return ``own`` with this part of ``donor``."""
        return own.with_(
            observations=_exchanged(own.observations, donor.observations, self.state),
            next_observations=_exchanged(own.next_observations, donor.next_observations, self.next_state),
            actions=donor.actions if self.action else own.actions,
            terminated=donor.terminated if self.done else own.terminated,
        )


@dataclass(frozen=True)
class BackgroundColour(StepPart):
    """The background of images: the pixels of each image's most frequent colour.

    Attributes:
        planes: first channels that hold numbers and stay as they are.
    """

    planes: int = 0

    def exchange(self, own: Transitions, donor: Transitions) -> Transitions:
        """Return ``own``, its background painted in the background colour of ``donor``."""
        changes: dict[str, Array] = {}
        for mask, name in ((self.state, "observations"), (self.next_state, "next_observations")):
            if mask is not None:
                images = getattr(own, name)[..., self.planes :]
                where = _background(images)[1]
                painted = _background(getattr(donor, name)[..., self.planes :])[0]
                colours = np.where(where[..., None], painted[:, None, None], images)
                changes[name] = np.concatenate([getattr(own, name)[..., : self.planes], colours], -1)
        return own.with_(**changes)


def background_share(images: Array) -> float:
    """Return the mean share of pixels that have their image's most frequent colour."""
    return float(_background(images)[1].mean())


def _background(images: Array) -> tuple[Array, BoolArray]:
    flat = images.reshape(len(images), -1, images.shape[-1])
    colours = np.zeros((len(images), images.shape[-1]), images.dtype)
    for at, image in enumerate(flat):
        found, count = np.unique(image, axis=0, return_counts=True)
        colours[at] = found[count.argmax()]
    return colours, (images == colours[:, None, None]).all(-1)


def _exchanged(own: Array, donor: Array, mask: BoolArray | None) -> Array:
    return own if mask is None else np.where(mask, donor, own)


@dataclass(frozen=True)
class Effect:
    """What the exchange of a part does to the reward.

    Attributes:
        part: the part.
        moves: root mean square change of the reward when the part is exchanged, relative to exchanging the whole step: 0 nothing,
            1 as much as exchanging everything.
        interval: 95 % interval of ``moves``, over episodes.
        rest: as ``moves``, when everything but the part is exchanged.
        rest_interval: its 95 % interval.
        donor_auc: how well the reward after exchanging the part tells donors of high reward from those of low reward (area under
            the ROC curve): 1 if it follows the donor.
        own_auc: the same for the step's own reward, after exchanging everything but the part: 1 if it is unaffected.
        true_donor_auc: as ``donor_auc``, with high and low by the true reward; None if that is unknown or constant.
        true_own_auc: as ``own_auc``, likewise.
    """

    part: StepPart
    moves: float
    interval: tuple[float, float]
    rest: float
    rest_interval: tuple[float, float]
    donor_auc: float
    own_auc: float
    true_donor_auc: float | None = None
    true_own_auc: float | None = None

    @property
    def sole(self) -> bool:
        """Whether the reward follows this part and nothing else: what moves it by less than `NOTHING` is ignored."""
        return self.moves > NOTHING and self.rest_interval[1] < NOTHING

    @property
    def decides(self) -> bool:
        """Whether high and low rewards follow this part: exchanged, nearly all become the donor's; else, nearly none do."""
        return self.sole or (min(self.donor_auc, self.own_auc) > 0.95 and self.moves > NEARLY_ALL and self.rest < 0.35)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"part": self.part.name} | fields_of(self, "part")


class ExchangePairs:
    """Pairs of steps to exchange parts between.

    Args:
        reward: the reward function.
        data: the steps to draw from. Donors come from other episodes where there are several.
        count: number of pairs.
        rng: draws the pairs.

    Attributes:
        own, donor: the steps of each pair.
        rewards, donor_rewards: their rewards, ``[count]``.
        weights: how often each pair occurs, relative to how often it is drawn, ``[count]``; their mean is 1.
        mean: mean reward of the data.
        scale: root mean square difference of both.
        noise: what nudging a step does to its reward, ``[count]``: each exchange does this, too.
        floor: what an exchange moves the reward by at most, as `Effect.moves`, if all it does is that; at least `NOTHING`.
    """

    def __init__(self, reward: RewardFunction, data: Transitions, count: int, rng: np.random.Generator):
        self.reward = reward
        values = reward.of(data)
        self.mean = float(values.mean())
        known = np.isfinite(data.rewards)
        kinds = [values, data.rewards if known.all() and len(data) else values]
        chances = levelled(kinds)
        own, donor = (rng.choice(len(data), count, p=chances) for _ in range(2))
        for _ in range(8):  # donors from other episodes, as far as chance allows
            same = data.episodes[own] == data.episodes[donor]
            donor[same] = rng.choice(len(data), int(same.sum()), p=chances)
        self.indices, self.donor_indices = own, donor
        self.own, self.donor = data[own], data[donor]
        self.rewards, self.donor_rewards = values[own], values[donor]
        # Figures are of pairs as they occur: rare rewards are drawn more often, and count the less.
        self.weights = 1 / (chances[own] * chances[donor])
        self.weights /= self.weights.mean()
        self.scale = self.mean_square(self.donor_rewards - self.rewards) ** 0.5
        self._label = split_at(np.concatenate([self.rewards, self.donor_rewards]))
        truth = data.rewards[np.concatenate([own, donor])]
        self._truth = split_at(truth) if known.all() and len(data) and np.ptp(truth) > 0 else None
        self.sizes, self._without = self._left_out(blocks(data.episodes), own, donor)
        moved = nudged(self.own, data, rng)
        self.noise = np.zeros(count) if moved is None else reward.of(moved) - self.rewards
        self.floor = max(NOTHING, self.interval(self.noise)[1])

    def __len__(self) -> int:
        return len(self.rewards)

    def exchanged(self, part: StepPart, rest: bool = False) -> FloatArray:
        """Return the reward after exchanging ``part``, or with ``rest`` everything but it, ``[pairs]``."""
        steps = part.exchange(self.donor, self.own) if rest else part.exchange(self.own, self.donor)
        return self.reward.of(steps)

    def moves(self, part: StepPart) -> float:
        """Return how much the exchange of ``part`` moves the reward (`Effect.moves`)."""
        return self.relative(self.exchanged(part) - self.rewards)

    def mean_square(self, changes: FloatArray) -> float:
        """Return the mean square of ``changes`` ``[pairs]``, over pairs as they occur."""
        return float(np.mean(self.weights * changes**2))

    def variance(self, values: FloatArray) -> float:
        """Return the variance of a reward of each pair."""
        return self.mean_square(values - float(np.mean(self.weights * values)))

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the weighted sum of ``values`` over all pairs, and without each block of episodes, ``[1 + blocks]``."""
        return np.concatenate([[float(self.weights @ values)], self._without @ values])

    def _left_out(self, block: IntArray, own: IntArray, donor: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the pairs of each block of episodes, and the weights of the pairs that have no step in it, ``[blocks, pairs]``."""
        left = np.arange(int(block.max(initial=0)) + 1)[:, None]
        apart = (block[own] != left) & (block[donor] != left)
        return np.bincount(block[own], minlength=len(left)), apart * self.weights

    def relative(self, changes: FloatArray) -> float:
        """Return the root mean square of ``changes`` relative to exchanging everything."""
        return self.mean_square(changes) ** 0.5 / self.scale if self.scale > 0 else 0.0

    def interval(self, changes: FloatArray) -> tuple[float, float]:
        """Return the 95 % interval of `relative` over episodes; 0 to infinity with too few of them, unless nothing changes."""
        if self.scale <= 0 or not changes.any():
            return 0.0, 0.0
        above, below = self._without @ changes**2, self._without @ (self.donor_rewards - self.rewards) ** 2
        ratios = np.sqrt(np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0))
        low, high = jackknife_interval(self.relative(changes), ratios, self.sizes, POSITIVE)
        return (0.0, math.inf) if low is None or high is None else (low, high)

    def effect(self, part: StepPart) -> Effect:
        """Measure what exchanging ``part`` does."""
        after, others = self.exchanged(part), self.exchanged(part, rest=True)
        count = len(self)
        truth = self._truth
        return Effect(
            part,
            self.relative(after - self.rewards),
            self.interval(after - self.rewards),
            self.relative(others - self.rewards),
            self.interval(others - self.rewards),
            auc(after, self._label[count:], 0.5),
            auc(others, self._label[:count], 0.5),
            None if truth is None else auc(after, truth[count:], 0.5),
            None if truth is None else auc(others, truth[:count], 0.5),
        )


def levelled(kinds: list[FloatArray]) -> FloatArray:
    """Return the chances of drawing each step: one part uniform, and for each of ``kinds`` one with equal shares by level."""
    n = len(kinds[0])
    chances = np.full(n, 1 / n)
    for values in kinds:
        span = float(np.ptp(values))
        level = np.zeros(n, int) if span <= 0 else np.minimum((values - values.min()) / span * LEVELS, LEVELS - 1)
        _, which, sizes = np.unique(level.astype(int), return_inverse=True, return_counts=True)
        chances += 1 / sizes[which] / len(sizes)
    return np.asarray(chances / chances.sum(), np.float64)


def split_at(values: FloatArray) -> BoolArray:
    """Split values into low and high where that explains most of their variance (Otsu 1979)."""
    ordered = np.sort(values)
    n = len(ordered)
    if n == 0 or ordered[0] == ordered[-1]:
        return np.zeros(n, bool)
    sums = np.cumsum(ordered)[:-1]
    below = np.arange(1, n)
    between = below * (n - below) * (sums / below - (sums[-1] + ordered[-1] - sums) / (n - below)) ** 2
    between[ordered[:-1] == ordered[1:]] = -1
    at = int(between.argmax())
    return np.asarray(values > (ordered[at] + ordered[at + 1]) / 2)


@dataclass(frozen=True)
class StepMoment:
    """One point in time that a step shows.

    Attributes:
        offset: steps relative to the state: 1 is the next state, 0 the state, -1 the frame before in a stack.
        state: where the observation shows it, ``[*observation_shape]`` bool; None if it doesn't.
        next_state: where the next observation shows it.
    """

    offset: int
    state: BoolArray | None
    next_state: BoolArray | None

    @property
    def name(self) -> str:
        """The moment in words."""
        if self.offset == 1:
            return "the next state"
        if self.offset == 0:
            return "the state"
        return f"the frame {-self.offset} step{'s' if self.offset < -1 else ''} before the state"


def moments(data: Transitions, reward: RewardFunction) -> list[StepMoment]:
    """Return the moments that a step shows, the latest first: next state, state, and the older frames of a stack.

    A stack is found in the data: all its frames but the oldest appear in the next observation too, one place further.
    """
    shape = data.observations.shape[1:]
    uses = [name in reward.inputs for name in ("state", "next_state")]
    everything = np.ones(shape, bool)
    frames = stack(data)
    if frames is None:
        found = [
            StepMoment(1, None, everything if uses[1] else None),
            StepMoment(0, everything if uses[0] else None, None),
        ]
    else:
        found = []
        for offset in range(1, -len(frames), -1):
            at = [len(frames) - 1 + offset, len(frames) - 2 + offset]  # of the moment in state and next state
            masks = [frames[i] if used and 0 <= i < len(frames) else None for i, used in zip(at, uses, strict=True)]
            found.append(StepMoment(offset, *masks))
    return [each for each in found if each.state is not None or each.next_state is not None]


def stack(data: Transitions, most: int = 300) -> list[BoolArray] | None:
    """Return the places of each frame in a stack of frames, the oldest first; None if observations are no stacks."""
    shape = data.observations.shape[1:]
    moving = [i for i in range(len(data)) if not np.array_equal(data.observations[i], data.next_observations[i])][:most]
    if not shape or not moving:
        return None
    before, after = data.observations[moving], data.next_observations[moving]
    for axis in {len(shape), 1} if len(shape) < 3 else {len(shape)}:
        size = shape[axis - 1]
        for width in [w for w in range(1, size // 2 + 1) if size % w == 0]:
            late, early = np.arange(width, size), np.arange(size - width)
            for newest_last, (now, then) in ((True, (late, early)), (False, (early, late))):
                kept = before.take(now, axis)
                if not np.array_equal(kept, after.take(then, axis)) or np.array_equal(kept, before.take(then, axis)):
                    continue
                places = []
                for start in range(0, size, width):
                    mask = np.zeros(shape, bool)
                    np.moveaxis(mask, axis - 1, 0)[start : start + width] = True
                    places.append(mask)
                return places if newest_last else places[::-1]
    return None


def part_of(name: str, mask: BoolArray, times: list[StepMoment]) -> StepPart:
    """Return the part ``mask`` of an observation at each of ``times``."""

    def within(of: Callable[[StepMoment], BoolArray | None]) -> BoolArray | None:
        found = [found for each in times if (found := of(each)) is not None]
        return mask & np.any(found, 0) if found else None

    return StepPart(name, within(lambda each: each.state), within(lambda each: each.next_state))


def dependent(data: Transitions, bins: int = 8, least: float = 0.4) -> list[list[int]]:
    """Group the features of vectors that depend on each other, such as cosine and sine of an angle, which make no sense apart.

    Two features depend on each other if one tells more than ``least`` of which of ``bins`` levels the other has (mutual information
    over the smaller entropy).

    Returns:
        Groups that together hold each feature once, in order.
    """
    flat = data.observations.reshape(len(data), -1)
    levels = []
    for column in flat.T:
        values, which = np.unique(column, return_inverse=True)
        if len(values) > bins:
            edges = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
            which = np.searchsorted(edges, column, "right")
        levels.append(which)
    group = list(range(len(levels)))
    for i, one in enumerate(levels):
        for j in range(i):
            if _shared(one, levels[j]) > least:
                group = [group[j] if of == group[i] else of for of in group]
    return [[i for i, of in enumerate(group) if of == name] for name in sorted(set(group), key=group.index)]


def _shared(one: Array, other: Array) -> float:
    """Return the mutual information of two arrays of levels over the smaller of their entropies."""
    joint = np.zeros((int(one.max()) + 1, int(other.max()) + 1))
    np.add.at(joint, (one, other), 1 / len(one))

    def entropy(of: FloatArray) -> float:
        used = of[of > 0]
        return float(-(used * np.log(used)).sum())

    apart = entropy(joint.sum(1)), entropy(joint.sum(0))
    together = entropy(joint.ravel())
    return (sum(apart) - together) / min(apart) if min(apart) > 0.1 else 0.0
