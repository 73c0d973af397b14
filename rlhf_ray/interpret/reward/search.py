"""The search for causes among the regions of observations: which regions, channels and moments move the reward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.ndimage import label

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.spaces import names_in
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import NEEDED, added, association
from rlhf_ray.interpret.reward.curves import OWN, OWN_OF_IMAGES, Curve, curve_of
from rlhf_ray.interpret.reward.exchange import (
    NEARLY_ALL,
    NOTHING,
    BackgroundColour,
    Effect,
    ExchangePairs,
    StepMoment,
    StepPart,
    background_share,
    dependent,
    part_of,
    stack,
)
from rlhf_ray.interpret.reward.findings import CLEAR, SPILLED, Cause, Findings, Together
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.measure.intervals import MeanEstimate, jackknife_interval
from rlhf_ray.reward.functions import RewardFunction

EXPLAINED = 0.9
"""Share of the variance that a smaller part must explain to stand for a larger one."""
SUFFICIENT, SAME = 0.95, 0.99
"""The same of a set of regions for all of them, and of a box for the regions that it lies in."""
OTHER_CHANNELS = 0.5
"""Most that any other channel may explain if one stands for all."""
LEADING, STANDS_OUT = 0.4, 0.3
"""Regions stand out if they move the reward by this share of what the strongest moves it, and that moves it by this much."""
MOST_OF_IMAGE = 0.5
"""Share of the patches from which a cause is no part of the image."""
DEPENDENT = 0.25
"""Share by which exchanging one cause alone may change the variance of the reward if it is independent of what else the reward
looks at."""
TOGETHER, PAIRS = 0.075, 3000
"""Share of the variance that is in neither of two causes alone from which they act together; pairs of steps that tell it: it is a
mean of fourth powers, which a few pairs decide."""
BACKGROUND = 0.3
"""Share of an image's pixels with its most frequent colour from which it is a background."""
TRIES = 80
"""Sets of regions tried in the search for one that is sufficient."""
CAUSES = 6
"""Causes described one by one."""


class Search:
    """The search among the regions of observations."""

    def __init__(
        self,
        pairs: ExchangePairs,
        regions: Regions,
        times: list[StepMoment],
        data: Transitions,
        truth: RewardFunction | None,
        objects: Mapping[str, int],
        fitted: bool = False,
    ):
        self.fitted = fitted
        self.words = {float(code): word for word, code in objects.items()} if regions.kind == "cell" else {}
        self.pairs, self.regions, self.times, self.data, self.truth = pairs, regions, times, data, truth
        self.shape = data.observations.shape[1:]
        self.dependent = [[i] for i in range(len(regions))]
        if regions.kind == "feature" and 1 < len(regions) <= 64 and stack(data) is None:
            self.dependent = dependent(data)
        self.channels = self.shape[2] if regions.kind == "patch" and len(self.shape) == 3 else 1
        named = names_in(pairs.reward.observation_space)
        self.channel_names = named if len(named) == self.channels else [f"channel {i}" for i in range(self.channels)]

    def extended(self, findings: Findings) -> Findings:
        """Return the findings with those about regions."""
        pairs, regions = self.pairs, self.regions
        everything = self.exchanged(np.ones(self.shape, bool))
        changes = [self.exchanged(mask) - pairs.rewards for mask in regions.masks]
        moves = np.array([pairs.relative(change) for change in changes])
        intervals = np.array([pairs.interval(change) for change in changes])
        background = self.background()
        causes = self.causes(everything, moves, intervals)
        others = self.others(causes)
        within = {i for cause in causes for i in cause.regions}
        silent = [i for i in np.flatnonzero(intervals[:, 1] < NOTHING) if i not in within and self.varies(int(i))]
        return replace(
            findings,
            regions=moves,
            intervals=intervals,
            causes=tuple(causes[:CAUSES]),
            others=others,
            background=background,
            together=tuple(self.together(causes[:CAUSES])),
            missed=tuple(self.missed()),
            ignored=tuple(regions.names[i] for i in silent),
        )

    def causes(self, everything: FloatArray, moves: FloatArray, intervals: FloatArray) -> list[Cause]:
        """Return the causes, the largest first."""
        if self.pairs.relative(everything - self.pairs.rewards) <= NOTHING:
            return []
        chosen = self.chosen(everything, moves, intervals)
        if self.regions.kind == "feature":
            groups = [self.smallest(group, intervals) for group in self.dependent if set(group) & set(chosen)]
        else:
            groups = self.connected(chosen)
        causes = [cause for group in groups if self.counts((cause := self.cause(group)).effect)]
        return sorted(causes, key=lambda cause: -cause.effect.moves)

    def smallest(self, group: list[int], intervals: FloatArray) -> list[int]:
        """Return those of a group's features whose exchange alone moves the reward, if they explain all that the group does."""
        moving = [i for i in group if intervals[i, 1] >= NOTHING]
        if not moving or len(moving) == len(group):
            return group
        explained = self.explained(self.exchanged(self.regions.join(moving)), self.exchanged(self.regions.join(group)))
        return moving if explained >= SAME else group

    def counts(self, effect: Effect) -> bool:
        """Return whether an exchange does anything, and more than draw the noise in the reward anew."""
        return effect.interval[1] >= NOTHING and (self.pairs.floor == NOTHING or effect.interval[0] > self.pairs.floor)

    def others(self, causes: Sequence[Cause]) -> Effect | None:
        """Exchange everything outside the causes, which the features of vectors are not."""
        if not causes or self.regions.kind == "feature":
            return None
        outside = ~np.any([cause.mask for cause in causes], 0)
        return self.pairs.effect(self.part(outside, "everything outside these regions")) if outside.any() else None

    def varies(self, region: int) -> bool:
        """Return whether a region shows more than one thing in the data, at both ends of each step."""
        mask = self.regions.masks[region]
        return bool(np.ptp(np.concatenate([self.data.observations[:, mask], self.data.next_observations[:, mask]])) > 0)

    def missed(self) -> Iterator[tuple[str, float]]:
        """Yield features that move the true reward clearly and this reward not at all, with the effect on the true one."""
        if self.truth is None or self.regions.kind != "feature":
            return
        for group in self.dependent:
            part = self.part(self.regions.join(group))
            moves = true_effect(self.truth, self.pairs, part)
            if moves > CLEAR and self.pairs.moves(part) < NOTHING:
                if self.needed(group):
                    yield " with ".join(self.regions.names[i] for i in group), moves
            elif len(group) > 1 and not self.fitted:
                yield from self.replaced(group)

    def needed(self, group: list[int]) -> bool:
        """Return whether features tell of the true reward what all else does not: a stand-in also uses what goes with them."""
        told = added(self.data, self.regions, [self.regions.join(group)]) if self.fitted else None
        return told is None or told[0].low > NEEDED

    def replaced(self, group: list[int]) -> Iterator[tuple[str, float]]:
        """Yield the features that the true reward looks at, of some that go together, if this reward looks at none of those."""
        assert self.truth is not None
        parts = {i: self.part(self.regions.masks[i]) for i in group}
        true = {i: true_effect(self.truth, self.pairs, part) for i, part in parts.items()}
        if all(min(true[i], self.pairs.moves(part)) < NOTHING for i, part in parts.items()):
            yield from ((self.regions.names[i], moves) for i, moves in true.items() if moves > CLEAR)

    def part(self, mask: BoolArray, name: str = "", times: list[StepMoment] | None = None) -> StepPart:
        """Return the part ``mask`` at ``times``; at all of them by default."""
        return part_of(name, mask, self.times if times is None else times)

    def exchanged(self, mask: BoolArray) -> FloatArray:
        """Return the rewards with the part ``mask`` exchanged at all moments."""
        return self.pairs.exchanged(self.part(mask))

    def explained(self, part: FloatArray, whole: FloatArray) -> float:
        """Return the share of the change to ``whole`` that the change to ``part`` explains."""
        total = self.pairs.mean_square(whole - self.pairs.rewards)
        return 1 - self.pairs.mean_square(part - whole) / total if total > 0 else 0.0

    def chosen(self, everything: FloatArray, moves: FloatArray, intervals: FloatArray) -> list[int]:
        """Return the regions that the causes consist of: those that stand out, and those that it takes to explain the reward.

        If that takes many more than those that stand out, such as the many places where an agent may be, only these are returned.
        """
        clear = set(np.flatnonzero(intervals[:, 0] > NOTHING).tolist())
        if self.regions.kind == "feature":
            return sorted(clear | set(self.sufficient(everything, moves)))
        leaders = {i for i in clear if moves[i] >= LEADING * moves.max()}
        both = leaders | set(self.sufficient(everything, moves))
        return sorted(leaders if moves.max() > STANDS_OUT and len(both) > 2 * len(leaders) + 2 else both)

    def sufficient(self, everything: FloatArray, moves: FloatArray) -> list[int]:
        """Drop regions, in ever smaller blocks and the least effective first, while the rest explains the reward.

        Unlike the exchange of single regions, this finds causes that can stand in for one another.
        """
        kept: list[int] = np.argsort(moves, kind="stable").tolist()
        block, tries = (len(kept) + 1) // 2, 0
        while block >= 1:
            at = 0
            while at < len(kept) and len(kept) > 1 and tries < TRIES:
                fewer = kept[:at] + kept[at + block :]
                tries += 1
                if fewer and self.explained(self.exchanged(self.regions.join(fewer)), everything) >= SUFFICIENT:
                    kept = fewer
                else:
                    at += block
            block //= 2
        return kept

    def connected(self, chosen: Sequence[int]) -> list[list[int]]:
        """Group neighbouring regions, corners included."""
        at = np.zeros(self.regions.layout, bool)
        at.flat[[i for i in chosen if i < at.size]] = True
        labels, count = label(at, np.ones((3, 3)))
        groups = [np.flatnonzero(labels == number).tolist() for number in range(1, count + 1)]
        return [*groups, *([i] for i in chosen if i >= at.size)]

    def cause(self, group: list[int]) -> Cause:
        """Describe the cause that lies in a group of regions: its box, its channels, its moments, its curve."""
        mask = self.regions.join(group)
        if self.regions.kind == "patch" and group[0] < len(self.regions) - self.regions.planes:
            mask, name = self.box(mask, group)
        elif len(group) == 1 or self.regions.kind == "feature":
            name = " with ".join(self.regions.names[i] for i in group[:4]) + (" …" if len(group) > 4 else "")
        else:
            rows, columns = np.divmod(group, self.regions.layout[1])
            filled = len(group) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
            box = f"cells in rows {rows.min()}-{rows.max()}, columns {columns.min()}-{columns.max()}"
            name = box if filled else f"{len(group)} of the {box}"
        effect = self.pairs.effect(self.part(mask, name))
        each = [self.pairs.effect(self.part(mask, moment.name, [moment])) for moment in self.times]
        when, curve_times = self.when(mask, each)
        true_moves = None if self.truth is None else true_effect(self.truth, self.pairs, self.part(mask))
        return Cause(
            name,
            tuple(group),
            mask,
            effect,
            tuple(each),
            when,
            self.curve(mask, curve_times),
            # what an exchange does to the true reward says more, except about a cause that the data can't tell from the rest, and
            # where a forest that stands in for the true reward may have missed the cause
            association(self.data, self.regions, mask)
            if true_moves is None or effect.moves > NEARLY_ALL or (self.fitted and true_moves < SPILLED)
            else None,
            true_moves,
            self.fitted,
        )

    def box(self, mask: BoolArray, group: list[int]) -> tuple[BoolArray, str]:
        """Shrink a group of patches to the smallest box, and the fewest channels, that explain what its exchange does."""
        if len(group) > MOST_OF_IMAGE * (len(self.regions) - self.regions.planes):
            return mask, f"{len(group)} of {len(self.regions) - self.regions.planes} patches of the image"
        whole = self.exchanged(mask)
        plane = np.asarray(mask.any(axis=2))
        rows, columns = np.flatnonzero(plane.any(1)), np.flatnonzero(plane.any(0))
        sides = [int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1]

        def inside(box: list[int]) -> BoolArray:
            window = np.zeros(self.shape, bool)
            window[box[0] : box[1], box[2] : box[3], self.regions.planes :] = True
            return window

        for side in range(4):
            inward = 1 if side % 2 == 0 else -1
            step = sides[side | 1] - sides[side & ~1]
            while step >= 1:
                smaller = sides.copy()
                smaller[side] += inward * step
                fits = smaller[side | 1] > smaller[side & ~1]
                if fits and self.explained(self.exchanged(inside(smaller) & mask), whole) >= SAME:
                    sides = smaller
                else:
                    step //= 2
        mask = inside(sides)  # all of what the name says
        name = f"rows {sides[0]}-{sides[1] - 1}, columns {sides[2]}-{sides[3] - 1}"
        channel = self.channel(mask, self.exchanged(mask))
        if channel is None:
            return mask, name
        only = np.zeros(self.shape, bool)
        only[..., channel] = True
        return mask & only, f"{name}, {self.channel_names[channel]}"

    def channel(self, mask: BoolArray, whole: FloatArray) -> int | None:
        """Return the channel that alone explains what the exchange of ``mask`` does; None if there is none."""
        if self.channels == 1 or stack(self.data) is not None:
            return None
        shares = []
        for channel in range(self.channels):
            only = np.zeros(self.shape, bool)
            only[..., channel] = True
            shares.append(self.explained(self.exchanged(mask & only), whole))
        best = int(np.argmax(shares))
        others = max(share for channel, share in enumerate(shares) if channel != best)
        return best if shares[best] >= EXPLAINED and others < OTHER_CHANNELS else None

    def when(self, mask: BoolArray, each: list[Effect]) -> tuple[str, list[StepMoment]]:
        """Return the moments at which the cause matters, in words, and those moments."""
        whole = self.exchanged(mask)
        alone = [self.explained(self.exchanged_at(mask, [moment]), whole) for moment in self.times]
        best = int(np.argmax(alone))
        if alone[best] >= EXPLAINED:
            return f"in {self.times[best].name}", [self.times[best]]
        used = [moment for moment, effect in zip(self.times, each, strict=True) if effect.interval[1] >= NOTHING]
        if len(used) < 2:
            used = list(self.times)
        return "in " + " and ".join(moment.name for moment in used) + " together", used

    def exchanged_at(self, mask: BoolArray, times: list[StepMoment]) -> FloatArray:
        """Return the rewards with the part ``mask`` exchanged at ``times``."""
        return self.pairs.exchanged(self.part(mask, "", times))

    def curve(self, mask: BoolArray, times: list[StepMoment]) -> Curve | None:
        """Return the mean reward by the donor's content of a region of one number, or of one that shows few different things."""
        shown = [_shown(self.data, mask, moment) for moment in times[:2]]
        if shown[0].shape[1] != 1 or len(times) > 2:
            return None
        contents, own = [content[:, 0] for content in shown], OWN_OF_IMAGES if self.regions.kind == "patch" else OWN
        return curve_of(self.pairs.reward, self.data, self.part(mask, "", times), contents, self.words, own)

    def background(self) -> Effect | None:
        """Exchange the background colour of images that have one."""
        planes = self.regions.planes
        images = self.pairs.own.next_observations[:40, ..., planes:]
        if self.regions.kind != "patch" or background_share(images) < BACKGROUND:
            return None
        part = self.part(np.ones(self.shape, bool))
        return self.pairs.effect(BackgroundColour("the background colour", part.state, part.next_state, planes=planes))

    def together(self, causes: Sequence[Cause]) -> list[Together]:
        """Return pairs of causes whose joint effect is not the sum of both, with the share of the variance that the sum leaves.

        The second difference over two independent steps has 4 times the variance of the interaction, the difference of two
        rewards twice the variance of the reward (Sobol 1993). Noise is an interaction of everything: it is left out. This holds for
        causes that are independent: of others, whose exchange alone changes the variance, no share can be told.
        """
        if len(causes) < 2:
            return []
        many = self.pairs
        if self.regions.kind != "patch" and len(many) < PAIRS:
            many = ExchangePairs(many.reward, self.data, PAIRS, np.random.default_rng(0))
        total = 2.0 * many.sums((many.donor_rewards - many.rewards) ** 2)
        noise = 2 * many.noise**2
        alone = [many.exchanged(self.part(each.mask)) - many.rewards for each in causes]
        found = []
        spread = many.variance(many.rewards)
        apart = [abs(many.variance(many.rewards + change) - spread) <= DEPENDENT * spread for change in alone]
        for (i, a), (j, b) in itertools.combinations(enumerate(causes), 2):
            if not (apart[i] and apart[j]):
                continue
            both = many.exchanged(self.part(a.mask | b.mask)) - many.rewards
            shares = many.sums((both - alone[i] - alone[j]) ** 2 - noise) / np.maximum(total, 1e-300)
            value = float(shares[0])
            share = OverEpisodes.of(MeanEstimate(value, *jackknife_interval(value, shares[1:], many.sizes)))
            if share.value > TOGETHER and share.low > 0:
                first, second = sorted((a, b), key=lambda each: each.regions)
                found.append(Together(first.name, second.name, share))
        return sorted(found, key=lambda each: -each.share.value)


def _shown(steps: Transitions, mask: BoolArray, moment: StepMoment) -> FloatArray:
    if moment.next_state is not None and (mask & moment.next_state).any():
        return np.asarray(steps.next_observations[:, mask & moment.next_state])
    assert moment.state is not None
    return np.asarray(steps.observations[:, mask & moment.state])


def true_effect(truth: RewardFunction, pairs: ExchangePairs, part: StepPart) -> float:
    """Return how much the exchange of ``part`` moves the true reward, relative to exchanging everything.

    An observation's part is exchanged before and after the step: the two rewards may look at different moments.
    """
    masks = [mask for mask in (part.state, part.next_state) if mask is not None]
    if masks:
        both = np.logical_or.reduce(masks)
        part = StepPart(part.name, both, both, part.action, part.done)
    own, donor = truth.of(pairs.own), truth.of(pairs.donor)
    change = truth.of(part.exchange(pairs.own, pairs.donor)) - own
    total = pairs.mean_square(donor - own)
    return (pairs.mean_square(change) / total) ** 0.5 if total > 0 else 0.0
