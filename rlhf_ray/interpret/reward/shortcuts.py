"""The shortcut finder: which parts of a step move the reward, and whether those are the parts that should.

It exchanges inputs, regions, moments and channels between steps (`rlhf_ray.interpret.reward.exchange`), joins those that move the
reward to causes, and compares each cause with the true reward where that is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import Association, association, fitted_truth, is_erratic
from rlhf_ray.interpret.reward.exchange import (
    BackgroundColour,
    Effect,
    ExchangePairs,
    StepMoment,
    StepPart,
    background_share,
    dependent,
    moments,
    part_of,
    stack,
)
from rlhf_ray.interpret.reward.regions import Regions
from rlhf_ray.interpret.reward.summaries import Summary, summaries
from rlhf_ray.reward.functions import RewardFunction

NOTHING = 0.05
"""Parts whose exchange moves the reward less than this, relative to exchanging everything, are ignored by the reward."""
CLEAR = 0.2
"""Parts whose exchange moves a reward more than this, relative to exchanging everything, clearly matter to it."""
EXPLAINED = 0.9
"""Share of the variance that a smaller part must explain to stand for a larger one."""
TRIES = 80
"""Sets of regions tried in the search for one that is sufficient."""
CAUSES = 6
"""Causes described one by one."""


@dataclass(frozen=True)
class Curve:
    """The mean reward as a function of what a region shows, everything else being as in the data.

    Attributes:
        content: what the region shows: ``(low, high)`` of a range, one value, or a change ``(before, after)``, in words.
        middle: ``[bins]`` the content's mean, for drawing; for changes the number of the bin.
        rewards: ``[bins]`` mean reward.
        counts: ``[bins]`` pairs.
    """

    content: tuple[str, ...]
    middle: FloatArray
    rewards: FloatArray
    counts: FloatArray

    def words(self) -> str:
        """Describe the curve in a few words."""
        if len(self.rewards) < 2 or np.ptp(self.rewards) == 0:
            return "does not change the mean reward"
        top, bottom = int(self.rewards.argmax()), int(self.rewards.argmin())
        ends = f"from {self.rewards[0]:.2g} at {self.content[0]} to {self.rewards[-1]:.2g} at {self.content[-1]}"
        rise = np.diff(self.rewards)
        if len(self.rewards) > 2 and self.content[0].count("→") == 0:
            slack = 0.1 * np.ptp(self.rewards)
            if rise.min() > -slack and top > bottom:
                return f"raises the reward ({ends})"
            if rise.max() < slack and top < bottom:
                return f"lowers the reward ({ends})"
        return (
            f"makes the reward highest at {self.content[top]} ({self.rewards[top]:.2g}) and lowest at "
            f"{self.content[bottom]} ({self.rewards[bottom]:.2g})"
        )


@dataclass(frozen=True)
class Cause:
    """A part of the observation that moves the reward.

    Attributes:
        name: region, and channels if only some of them matter.
        regions: numbers of the regions it lies in.
        mask: ``[*observation_shape]`` bool.
        effect: of exchanging it at all moments.
        moments: effect of exchanging it at each moment alone, the latest moment first.
        when: the moments that suffice, in words.
        curve: reward against content; None if it has too many values to tell apart.
        association: with the true reward; None if that is unknown or constant, or ``true_moves`` says enough.
        true_moves: as ``effect.moves``, of the true reward function; None without one.
    """

    name: str
    regions: tuple[int, ...]
    mask: BoolArray
    effect: Effect
    moments: tuple[Effect, ...]
    when: str
    curve: Curve | None = None
    association: Association | None = None
    true_moves: float | None = None


@dataclass(frozen=True)
class Findings:
    """What the shortcut finder found.

    Attributes:
        scale: standard deviation of the reward over the data.
        steps: steps in the data.
        pairs: pairs of steps used.
        inputs: effect of exchanging the whole state, next state, action and termination flag. Empty for a constant reward.
        done_change: mean reward with the termination flag minus without it, in standard deviations; None if it isn't an input.
        regions: effect ``[regions]`` of exchanging each region at all moments.
        intervals: ``[regions, 2]``: their 95 % intervals.
        causes: the largest causes, the largest first.
        others: effect of exchanging all of the observation but the causes; None for vectors, or without causes.
        background: effect of exchanging the background colour; None without a background.
        together: pairs of causes that act together (neither adds to the other), with the share of the variance that this makes.
        moments: names of the moments that steps show.
        frames: frames of a stack; 1 without.
        ignored: names of the inputs and regions that the reward ignores.
        missed: features that it ignores although they move the true reward, each with how much (as `Effect.moves`).
        true_inputs: how much the exchange of each of ``inputs`` moves the true reward; empty without one.
        summaries: simple summaries of steps that tell the reward.
        action_curve: reward against action; None for actions of several numbers, and where the reward doesn't see them.
        erratic: whether similar steps don't have similar rewards: forests on vectors predict nothing of them.
    """

    scale: float
    steps: int
    pairs: int
    inputs: tuple[Effect, ...] = ()
    done_change: float | None = None
    regions: FloatArray = field(default_factory=lambda: np.zeros(0))
    intervals: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    causes: tuple[Cause, ...] = ()
    others: Effect | None = None
    background: Effect | None = None
    together: tuple[tuple[str, str, float], ...] = ()
    moments: tuple[str, ...] = ()
    frames: int = 1
    ignored: tuple[str, ...] = ()
    missed: tuple[tuple[str, float], ...] = ()
    true_inputs: tuple[float, ...] = ()
    summaries: tuple[Summary, ...] = ()
    action_curve: Curve | None = None
    erratic: bool = False

    @property
    def constant(self) -> bool:
        """Whether the reward is the same on all steps."""
        return not self.inputs


def find(
    reward: RewardFunction,
    data: Transitions,
    regions: Regions | None,
    rng: np.random.Generator,
    *,
    pairs: int | None = None,
    truth: RewardFunction | None = None,
    objects: Mapping[str, int] | None = None,
) -> Findings:
    """Find what moves ``reward``.

    Args:
        reward: the reward function.
        data: steps to exchange parts between, of several episodes if possible. True rewards are used where they are known.
        regions: parts of the observations; None for tables: then only whole inputs are exchanged.
        rng: draws the pairs.
        pairs: pairs of steps; by default 1,000, or 160 for images.
        truth: the true reward function, if it can be computed for any step: each cause then tells how it moves the true reward. For
            vectors, a stand-in is fitted to recorded true rewards if there is none.
        objects: object codes by name, for grids.
    """
    values = reward.of(data)
    scale = float(values.std()) if len(data) else 0.0
    if len(data) < 2 or np.ptp(values) <= 1e-6 * max(1e-3, float(np.abs(values).max())):
        return Findings(scale, len(data), 0)
    image = is_image(reward.observation_space) or (regions is not None and regions.kind == "patch")
    drawn = ExchangePairs(reward, data, pairs or (160 if image else 1000), rng)
    times = moments(data, reward)
    inputs = [drawn.effect(part) for part in _inputs(reward, data)]
    if truth is None and regions is not None and regions.kind == "feature":
        truth = fitted_truth(reward, data, rng)
    found: dict[str, Any] = {}
    if regions is not None and times:
        found = _Search(drawn, regions, times, data, truth, objects or {}).run()
    flipped = _done_change(drawn, scale) if "done" in reward.inputs else None
    kept = drawn.own.terminated.any() or drawn.donor.terminated.any()
    silent = [
        each.part.name
        for each in inputs
        if each.interval[1] < NOTHING and not (each.part.done and (not kept or abs(flipped or 0) > NOTHING))
    ]
    frames = stack(data)
    return Findings(
        scale,
        len(data),
        len(drawn),
        tuple(inputs),
        flipped,
        moments=tuple(each.name for each in times),
        frames=1 if frames is None else len(frames),
        ignored=(*silent, *found.pop("ignored", ())),
        true_inputs=() if truth is None else tuple(true_effect(truth, drawn, each.part) for each in inputs),
        summaries=tuple(summaries(values, data, regions, objects)[:3]),
        action_curve=_action_curve(drawn) if "action" in reward.inputs else None,
        erratic=regions is not None and regions.kind == "feature" and is_erratic(values, data, rng),
        **found,
    )


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
    total = float(np.mean((donor - own) ** 2))
    return float(np.sqrt(np.mean(change**2) / total)) if total > 0 else 0.0


def _inputs(reward: RewardFunction, data: Transitions) -> list[StepPart]:
    everything = np.ones(data.observations.shape[1:], bool)
    parts = {
        "next_state": StepPart("the next state", next_state=everything),
        "state": StepPart("the state", state=everything),
        "action": StepPart("the action", action=True),
        "done": StepPart("the termination flag", done=True),
    }
    return [part for name, part in parts.items() if name in reward.inputs]


def _action_curve(pairs: ExchangePairs) -> Curve | None:
    actions = pairs.donor.actions.reshape(len(pairs), -1)
    if actions.shape[1] != 1:
        return None
    after = pairs.exchanged(StepPart("the action", action=True))
    return curve_of([actions[:, 0]], _steadier(after, pairs.rewards))


def _steadier(after: FloatArray, before: FloatArray) -> FloatArray:
    """Return rewards after an exchange, or their changes plus the mean before: the same means, of the smaller variance."""
    changes = after - before
    return after if after.var() <= changes.var() else np.asarray(changes + before.mean())


def _done_change(pairs: ExchangePairs, scale: float) -> float:
    with_, without = (pairs.reward.of(pairs.own.with_(terminated=np.full(len(pairs), flag))) for flag in (True, False))
    return float((with_ - without).mean()) / scale if scale > 0 else 0.0


class _Search:
    """The search among the regions of observations."""

    def __init__(
        self,
        pairs: ExchangePairs,
        regions: Regions,
        times: list[StepMoment],
        data: Transitions,
        truth: RewardFunction | None,
        objects: Mapping[str, int],
    ):
        self.words = {float(code): word for word, code in objects.items()} if regions.kind == "cell" else {}
        self.pairs, self.regions, self.times, self.data, self.truth = pairs, regions, times, data, truth
        self.shape = data.observations.shape[1:]
        self.dependent = [[i] for i in range(len(regions))]
        if regions.kind == "feature" and 1 < len(regions) <= 64 and stack(data) is None:
            self.dependent = dependent(data)
        self.channels = self.shape[2] if regions.kind == "patch" and len(self.shape) == 3 else 1

    def run(self) -> dict[str, Any]:
        pairs, regions = self.pairs, self.regions
        everything = self.exchanged(np.ones(self.shape, bool))
        changes = [self.exchanged(mask) - pairs.rewards for mask in regions.masks]
        moves = np.array([pairs.relative(change) for change in changes])
        intervals = np.array([pairs.interval(change) for change in changes])
        background = self.background()
        causes: list[Cause] = []
        if pairs.relative(everything - pairs.rewards) > NOTHING:
            chosen = self.chosen(everything, moves, intervals)
            groups = (
                [group for group in self.dependent if set(group) & set(chosen)]
                if regions.kind == "feature"
                else self.connected(chosen)
            )
            causes = [self.cause(group) for group in groups]
            causes = sorted(
                (each for each in causes if each.effect.interval[1] >= NOTHING), key=lambda c: -c.effect.moves
            )
        within = {i for each in causes for i in each.regions}
        others = None
        if causes and regions.kind != "feature":
            outside = ~np.any([each.mask for each in causes], 0)
            others = pairs.effect(self.part(outside, "everything outside these regions")) if outside.any() else None
        return {
            "others": others,
            "regions": moves,
            "intervals": intervals,
            "causes": tuple(causes[:CAUSES]),
            "background": background,
            "together": tuple(self.together(causes[:CAUSES], everything)),
            "missed": tuple(self.missed()),
            "ignored": tuple(
                name
                for i, name in enumerate(regions.names)
                if intervals[i, 1] < NOTHING and i not in within and np.ptp(self.contents(regions.masks[i])) > 0
            ),
        }

    def missed(self) -> Iterator[tuple[str, float]]:
        """Yield features that move the true reward clearly and this reward not at all, with the effect on the true one."""
        if self.truth is None or self.regions.kind != "feature":
            return
        for group in self.dependent:
            part = self.part(self.regions.join(group))
            moves = true_effect(self.truth, self.pairs, part)
            if moves > CLEAR and self.pairs.moves(part) < NOTHING:
                yield " with ".join(self.regions.names[i] for i in group), moves

    def part(self, mask: BoolArray, name: str = "", times: list[StepMoment] | None = None) -> StepPart:
        return part_of(name, mask, self.times if times is None else times)

    def exchanged(self, mask: BoolArray) -> FloatArray:
        return self.pairs.exchanged(self.part(mask))

    def contents(self, mask: BoolArray) -> FloatArray:
        """Return what a part shows in the data, at both ends of each step."""
        return np.concatenate([self.data.observations[:, mask], self.data.next_observations[:, mask]])

    def explained(self, part: FloatArray, whole: FloatArray) -> float:
        """Return the share of the change to ``whole`` that the change to ``part`` explains."""
        total = np.mean((whole - self.pairs.rewards) ** 2)
        return 1 - float(np.mean((part - whole) ** 2) / total) if total > 0 else 0.0

    def chosen(self, everything: FloatArray, moves: FloatArray, intervals: FloatArray) -> list[int]:
        """Return the regions that the causes consist of: those that stand out, and those that it takes to explain the reward.

        If that takes many more than those that stand out, such as the many places where an agent may be, only these are returned.
        """
        clear = set(np.flatnonzero(intervals[:, 0] > NOTHING).tolist())
        if self.regions.kind == "feature":
            return sorted(clear | set(self.sufficient(everything, moves)))
        leaders = {i for i in clear if moves[i] >= 0.4 * moves.max()}
        both = leaders | set(self.sufficient(everything, moves))
        return sorted(leaders if moves.max() > 0.3 and len(both) > 2 * len(leaders) + 2 else both)

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
                if fewer and self.explained(self.exchanged(self.regions.join(fewer)), everything) >= 0.95:
                    kept = fewer
                else:
                    at += block
            block //= 2
        return kept

    def connected(self, chosen: Sequence[int]) -> list[list[int]]:
        """Group neighbouring regions, corners included."""
        columns = self.regions.layout[1]
        left, groups = set(chosen), []
        while left:
            group, edge = [], [min(left)]
            left.discard(edge[0])
            while edge:
                at = edge.pop()
                group.append(at)
                near = {
                    other
                    for other in left
                    if abs(other // columns - at // columns) <= 1 and abs(other % columns - at % columns) <= 1
                }
                edge += sorted(near)
                left -= near
            groups.append(sorted(group))
        return groups

    def cause(self, group: list[int]) -> Cause:
        """Describe the cause that lies in a group of regions: its box, its channels, its moments, its curve."""
        mask = self.regions.join(group)
        if self.regions.kind == "patch":
            mask, name = self.box(mask, group)
        elif len(group) == 1 or self.regions.kind == "feature":
            name = " with ".join(self.regions.names[i] for i in group[:4]) + (" …" if len(group) > 4 else "")
        else:
            rows, columns = np.divmod(group, self.regions.layout[1])
            name = f"cells in rows {rows.min()}-{rows.max()}, columns {columns.min()}-{columns.max()}"
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
            # what an exchange does to the true reward says more, except about a cause that the data can't tell from the rest
            association(self.pairs, self.regions, mask) if true_moves is None or effect.moves > 0.8 else None,
            true_moves,
        )

    def box(self, mask: BoolArray, group: list[int]) -> tuple[BoolArray, str]:
        """Shrink a group of patches to the smallest box, and the fewest channels, that explain what its exchange does."""
        if len(group) > 0.5 * len(self.regions):
            return mask, f"{len(group)} of {len(self.regions)} patches of the image"
        whole = self.exchanged(mask)
        plane = np.asarray(mask.any(axis=2))
        rows, columns = np.flatnonzero(plane.any(1)), np.flatnonzero(plane.any(0))
        sides = [int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1]

        def inside(box: list[int]) -> BoolArray:
            window = np.zeros(self.shape, bool)
            window[box[0] : box[1], box[2] : box[3]] = True
            return window & mask

        for side in range(4):
            inward = 1 if side % 2 == 0 else -1
            step = sides[side | 1] - sides[side & ~1]
            while step >= 1:
                smaller = sides.copy()
                smaller[side] += inward * step
                fits = smaller[side | 1] > smaller[side & ~1]
                if fits and self.explained(self.exchanged(inside(smaller)), whole) >= 0.99:
                    sides = smaller
                else:
                    step //= 2
        mask = inside(sides)
        name = f"rows {sides[0]}-{sides[1] - 1}, columns {sides[2]}-{sides[3] - 1}"
        if self.channels > 1 and stack(self.data) is None:
            alone = []
            for channel in range(self.channels):
                only = np.zeros(self.shape, bool)
                only[..., channel] = True
                alone.append((self.explained(self.exchanged(mask & only), whole), channel, mask & only))
            share, channel, only = max(alone, key=lambda found: found[0])
            others = max(found[0] for found in alone if found[1] != channel)
            if share >= EXPLAINED and others < 0.5:
                return only, f"{name}, channel {channel}"
        return mask, name

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
        return self.pairs.exchanged(self.part(mask, "", times))

    def curve(self, mask: BoolArray, times: list[StepMoment]) -> Curve | None:
        """Return the mean reward by the donor's content of a region of one number, or of one that shows few different things."""
        shown = [_shown(self.pairs.donor, mask, moment) for moment in times[:2]]
        if shown[0].shape[1] != 1 or len(times) > 2:
            return None
        after = _steadier(self.exchanged_at(mask, times), self.pairs.rewards)
        return curve_of([content[:, 0] for content in shown], after, words=self.words)

    def background(self) -> Effect | None:
        """Exchange the background colour of images that have one."""
        if self.regions.kind != "patch" or background_share(self.pairs.own.next_observations[:40]) < 0.3:
            return None
        part = self.part(np.ones(self.shape, bool))
        return self.pairs.effect(BackgroundColour("the background colour", part.state, part.next_state))

    def together(self, causes: Sequence[Cause], everything: FloatArray) -> list[tuple[str, str, float]]:
        """Return pairs of causes whose joint effect is not the sum of both: neither can be told without the other."""
        total = float(np.mean((everything - self.pairs.rewards) ** 2))
        alone = [self.exchanged(each.mask) - self.pairs.rewards for each in causes]
        found = []
        for (i, a), (j, b) in itertools.combinations(enumerate(causes), 2):
            both = self.exchanged(a.mask | b.mask) - self.pairs.rewards
            share = float(np.mean((both - alone[i] - alone[j]) ** 2)) / total
            if share > 0.15:
                first, second = sorted((a, b), key=lambda each: each.regions)
                found.append((first.name, second.name, share))
        return sorted(found, key=lambda each: -each[2])


def _shown(steps: Transitions, mask: BoolArray, moment: StepMoment) -> FloatArray:
    if moment.next_state is not None and (mask & moment.next_state).any():
        return np.asarray(steps.next_observations[:, mask & moment.next_state])
    assert moment.state is not None
    return np.asarray(steps.observations[:, mask & moment.state])


def curve_of(
    contents: Sequence[FloatArray], rewards: FloatArray, bins: int = 8, words: Mapping[float, str] | None = None
) -> Curve | None:
    """Return the mean of ``rewards`` by content: one array ``[n]`` for each moment, the later moment first.

    Two moments with few values are told apart as changes; otherwise the later moment counts. ``words`` names values.
    """

    def called(value: float) -> str:
        return (words or {}).get(float(value), f"{value:.3g}")

    values = [np.unique(content) for content in contents]
    if len(contents) == 2 and len(values[0]) <= 6 and len(values[1]) <= 6:
        after, before = contents
        keys = list(itertools.product(values[1], values[0]))
        groups = [
            (f"{called(b)} → {called(a)}" if a != b else f"{called(a)} in both", (before == b) & (after == a))
            for b, a in keys
        ]
        middle = np.arange(len(groups), dtype=float)
    elif len(values[0]) <= 12:
        groups = [(called(value), contents[0] == value) for value in values[0]]
        middle = values[0].astype(float)
    else:
        edges = np.unique(np.quantile(contents[0], np.linspace(0, 1, bins + 1)))
        which = np.clip(np.searchsorted(edges, contents[0], "right") - 1, 0, len(edges) - 2)
        groups = [(f"{edges[i]:.2g} to {edges[i + 1]:.2g}", which == i) for i in range(len(edges) - 1)]
        middle = (edges[1:] + edges[:-1]) / 2
    kept = [i for i, (_, at) in enumerate(groups) if at.sum() >= 3]
    if len(kept) < 2:
        return None
    return Curve(
        tuple(groups[i][0] for i in kept),
        np.asarray(middle[kept]),
        np.array([rewards[groups[i][1]].mean() for i in kept]),
        np.array([groups[i][1].sum() for i in kept], float),
    )
