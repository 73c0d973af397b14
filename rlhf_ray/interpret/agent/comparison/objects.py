"""For each object: how strongly each agent's actions react when it is taken away from the same frames, and whether alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.comparison.pair import (
    COPIES,
    LEAST,
    AgentPair,
    Use,
    correlation,
    moved,
    same_action,
    use_of,
)
from rlhf_ray.interpret.agent.questions.objects import OBJECT, objects_of, patch_beside, repaint
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

FEWEST = 10
"""Frames that a change needs."""
FEATURES = 16
SAME = 0.5
"""Reactions whose correlation is below this, with its whole interval, are different ones."""


@dataclass(frozen=True)
class ChangedFrames:
    """Frames with a change.

    Attributes:
        name: what was changed.
        rows: which of the frames, ``[m]``.
        seen: what they look like then, ``[m, …]``.
        control: a change as large at another place, ``[m, …]``; None for vectors.
    """

    name: str
    rows: Array
    seen: Array
    control: Array | None


@dataclass(frozen=True)
class Reactions:
    """How both react to a change.

    Attributes:
        name: the change.
        frames: how many frames it changes.
        reaction: how far each one's actions move.
        control: the same for the control; None without one.
        uses: whether each reacts, and by more than to the control: with the whole interval.
        unused: whether each reacts by less than `LEAST` more than to the control: with the whole interval.
        differ: whether one reacts by more than the other.
        correlation: of both reactions, with their signs; ``chance``: with frames shuffled.
        same_before, same_after: how often both choose the same action.
    """

    name: str
    frames: int
    reaction: tuple[MeanEstimate, MeanEstimate]
    control: tuple[float | None, float | None]
    uses: tuple[bool, bool]
    unused: tuple[bool, bool]
    differ: bool
    correlation: MeanEstimate | None
    chance: MeanEstimate | None
    same_before: MeanEstimate
    same_after: MeanEstimate

    @property
    def use(self) -> Use:
        """Who reacts."""
        use, alike = use_of(self.uses, self.unused, self.differ), self.correlation
        high = 1.0 if alike is None else alike.mean if alike.high is None else alike.high
        return "differently" if use == "both" and high < SAME else use

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return fields_of(self) | {"use": self.use}


@dataclass(frozen=True)
class ComparedReactions:
    """What the step finds."""

    features: list[Reactions]


def changes(pair: AgentPair) -> Iterator[ChangedFrames]:
    """Change the frames: take objects out of images, edit levels, and exchange features of vectors."""
    frames, rng = pair.frames, np.random.default_rng([pair.seed, 0x0B])
    seen, image = frames.seen, is_image(pair.first.observation_space)
    objects, _ = objects_of(frames.masks)
    if image and not frames.masks:
        typical = np.median(seen, axis=0).astype(seen.dtype)
        differs = (seen != typical).any(-1)
        if 0 < differs.mean() <= OBJECT:
            rows = np.flatnonzero(differs.any((1, 2)))
            blot = _blot(seen[rows], differs[rows], differs[rows], rng)
            yield ChangedFrames(WORDS.text("foreground"), rows, np.broadcast_to(typical, seen.shape)[rows], blot)
    taken = np.any(list(objects.values()), axis=0) if objects else np.zeros(seen.shape[:3], bool)
    for name, mask in objects.items() if image else ():
        rows = np.flatnonzero(mask.any((1, 2)))
        blot = _blot(seen[rows], mask[rows], taken[rows], rng)
        yield ChangedFrames(WORDS.text("painted", name=name), rows, repaint(seen[rows], mask[rows]), blot)
    for name, edited in _edited(pair):
        rows = np.flatnonzero((edited != seen).reshape(len(seen), -1).any(1))
        control = None
        if image and len(rows):
            where = (edited[rows] != seen[rows]).any(-1)
            control = _blot(seen[rows], where, where | taken[rows], rng)
        yield ChangedFrames(WORDS.text("edit", name=name), rows, edited[rows], control)
    if not image and seen.ndim == 2:
        for feature, called in enumerate(feature_names(pair.first.observation_space)[:FEATURES]):
            other = seen.copy()
            other[:, feature] = seen[rng.permutation(len(seen)), feature]
            rows = np.flatnonzero(other[:, feature] != seen[:, feature])
            yield ChangedFrames(WORDS.text("feature", name=called), rows, other[rows], None)


def run(context: StepContext[AgentPair]) -> Section:
    """Measure the reactions of both."""
    pair = context.subject
    before = pair.frames.agents[0].react(), pair.frames.agents[1].react()
    features = []
    for changed in changes(pair):
        if len(changed.rows) >= FEWEST:
            context.say(f"reactions to {changed.name}")
            features.append(_reactions(pair, changed, before))
    if not features:
        return WORDS.skipped("nothing")
    statements = [_statement(pair, one) for one in features if any(one.uses)]
    if not pair.frames.states:
        statements.append(WORDS.statement("no_edits", 0.5))
    return WORDS.section(
        statements,
        tables=[_table(pair, features)],
        figures=ComparedReactions(features),
    )


def _reactions(pair: AgentPair, changed: ChangedFrames, before: tuple[FloatArray, FloatArray]) -> Reactions:
    space, rows, groups = pair.space, changed.rows, pair.frames.levels[changed.rows]
    after = [onlooker.react(changed.seen, rows) for onlooker in pair.frames.agents]
    far = [moved(before[who][rows], after[who], space) for who in (0, 1)]
    controls = [_control(pair, who, changed, before[who]) for who in (0, 1)]
    sizes = estimate_mean(far[0], groups), estimate_mean(far[1], groups)
    means, beyond, within = [], [], []
    for size, reaction, control in zip(sizes, far, controls, strict=True):
        means.append(None if control is None else float(control.mean()))
        excess = estimate_mean(reaction - (0.0 if control is None else control), groups)
        beyond.append(size.beyond(LEAST) and excess.mean > 0 and not excess.holds_zero)
        within.append(excess.high is not None and excess.high <= LEAST)
    deltas = [after[who] - before[who][rows] for who in (0, 1)]
    order = np.random.default_rng([pair.seed, 0x0C]).permutation(len(rows))
    alike, chance = (correlation(deltas[0], other, groups) for other in (deltas[1], deltas[1][order]))
    differ = not estimate_mean(far[0] - far[1], groups).holds_zero
    same_before, same_after = (
        estimate_mean(same_action(one, other, space).astype(float), groups)
        for one, other in ((before[0][rows], before[1][rows]), (after[0], after[1]))
    )
    return Reactions(
        changed.name, len(rows), sizes, (means[0], means[1]), (beyond[0], beyond[1]), (within[0], within[1]), differ, alike,
        chance, same_before, same_after,
    )  # fmt: skip


def _blot(seen: Array, masks: BoolArray, taken: BoolArray, rng: np.random.Generator) -> Array:
    """Paint a blot of each mask's shape elsewhere, in the frame's mean colour; where there is no place, nothing changes."""
    beside = patch_beside(masks, taken, rng)
    mean = seen.mean((1, 2), keepdims=True).astype(seen.dtype)
    painted: Array = np.where(beside[..., None], mean, seen)
    return painted


def _edited(pair: AgentPair) -> Iterator[tuple[str, Array]]:
    """Yield each edit with what the frames show after it."""
    states = pair.frames.states
    if not states:
        return
    batch = pair.make_batch(min(COPIES, len(states)))
    try:
        for edit in batch.edits:
            shown = []
            for start in range(0, len(states), batch.n):
                part = states[start : start + batch.n]
                batch.restore(part + [part[0]] * (batch.n - len(part)))
                shown.append(np.array(batch.edit(edit))[: len(part)])
            yield edit, np.concatenate(shown)
    finally:
        batch.close()


def _control(pair: AgentPair, who: int, changed: ChangedFrames, before: FloatArray) -> FloatArray | None:
    """Return how far the control moves an agent's actions; of vectors, how far the change moves its untrained twin's."""
    if changed.control is not None:
        after = pair.frames.agents[who].react(changed.control, changed.rows)
        return moved(before[changed.rows], after, pair.space)
    for twin in pair.frames.twins[who][:1]:
        return moved(twin.react(rows=changed.rows), twin.react(changed.seen, changed.rows), pair.space)
    return None


def _statement(pair: AgentPair, one: Reactions) -> Statement:
    verdict = WORDS.text(one.use, names=pair.names)
    return WORDS.statement(
        "reactions", max(size.mean for size in one.reaction), one=one, verdict=verdict, names=pair.names
    )


def _table(pair: AgentPair, features: list[Reactions]) -> Table:
    rows: list[list[Any]] = []
    for one in features:
        reactions = [
            cell
            for pair_of in zip(one.reaction, one.control, strict=True)
            for cell in (estimate(pair_of[0]), pair_of[1])
        ]
        rest = map(estimate, (one.correlation, one.chance, one.same_before, one.same_after))
        rows.append([one.name, one.frames, *reactions, *rest, WORDS.text(one.use, names=pair.names)])
    first, second = pair.names
    heads = (first, "control", second, "control", "alike", "chance", "same action", "after", "verdict")
    return WORDS.table("reactions", rows, heads)


STEP = Step(WORDS.name, WORDS.title, run)
