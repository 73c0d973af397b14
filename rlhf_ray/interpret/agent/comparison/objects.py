"""For each object: how strongly each agent's actions react when it is taken away from the same frames, and whether alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.comparison.concepts import LEAST
from rlhf_ray.interpret.agent.comparison.pair import COPIES, AgentPair, acts, correlation, moved, same_action, text
from rlhf_ray.interpret.agent.questions.objects import OBJECT, objects_of, patch_beside, repaint
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "objects"
TITLE = "What each one reacts to"

FEWEST = 10
"""Frames that a change needs."""
FEATURES = 16
UNSETTLED = "one reacts; whether the other does less is not settled"
SAME = 0.5
"""Reactions whose correlation is below this, with its whole interval, are different ones."""
ALIKE, DIFFERENTLY = "both react", "both react, differently"
FOREGROUND = "what differs from the typical frame"


@dataclass(frozen=True)
class Changed:
    """Frames with a change.

    Attributes:
        name: what was changed.
        at: which of the frames, ``[m]``.
        seen: what they look like then, ``[m, …]``.
        control: a change as large at another place, ``[m, …]``; None for vectors.
    """

    name: str
    at: Array
    seen: Array
    control: Array | None


def changes(pair: AgentPair) -> Iterator[Changed]:
    """Change the frames: take objects out of images, edit levels, and exchange features of vectors."""
    frames, rng = pair.frames, np.random.default_rng([pair.seed, 0x0B])
    seen, space = frames.seen, pair.first.observation_space
    image = is_image(space)
    objects, _ = objects_of(frames.masks)
    typical = np.median(seen, axis=0).astype(seen.dtype) if image else None
    if typical is not None and not frames.masks:
        differs = (seen != typical).any(-1)
        if 0 < differs.mean() <= OBJECT:
            at = np.flatnonzero(differs.any((1, 2)))
            yield Changed(
                FOREGROUND, at, np.broadcast_to(typical, seen.shape)[at], _blot(seen[at], differs[at], differs[at], rng)
            )
    taken = np.any(list(objects.values()), axis=0) if objects else None
    for name, mask in objects.items() if image else ():
        at = np.flatnonzero(mask.any((1, 2)))
        assert taken is not None
        yield Changed(
            f"{name} painted over", at, repaint(seen[at], mask[at]), _blot(seen[at], mask[at], taken[at], rng)
        )
    for edit, edited in _edited(pair):
        differs = (edited != seen).reshape(len(seen), -1).any(1)
        at = np.flatnonzero(differs)
        control = None
        if image and len(at):
            where = (edited[at] != seen[at]).any(-1)
            control = _blot(seen[at], where, where | (taken[at] if taken is not None else where), rng)
        yield Changed(f"edit {edit}", at, edited[at], control)
    if not image and seen.ndim == 2:
        for feature in range(min(FEATURES, seen.shape[1])):
            other = seen.copy()
            other[:, feature] = seen[rng.permutation(len(seen)), feature]
            at = np.flatnonzero(other[:, feature] != seen[:, feature])
            yield Changed(f"feature {feature} exchanged", at, other[at], None)


def run(context: StepContext[AgentPair]) -> Section:
    """Measure the reactions of both."""
    pair = context.subject
    frames, space = pair.frames, pair.space
    before = [acts(pair.decide(who), space) for who in (0, 1)]
    rows: list[list[Any]] = []
    features = []
    for changed in changes(pair):
        if len(changed.at) < FEWEST:
            continue
        context.say(f"reactions to {changed.name}")
        at, groups = changed.at, frames.moments.rows[changed.at]
        after = [acts(pair.decide(who, changed.seen, at=at), space) for who in (0, 1)]
        deltas = [after[who] - before[who][at] for who in (0, 1)]
        far_of: list[FloatArray] = []
        size: list[MeanEstimate] = []
        control: list[float | None] = []
        uses: list[bool] = []
        for who in (0, 1):
            far = moved(before[who][at], after[who], space)
            blot = _control(pair, who, changed, before[who])
            far_of.append(far)
            size.append(bootstrap(far, groups, pair.seed))
            control.append(None if blot is None else float(blot.mean()))
            beyond = bootstrap(far - (0.0 if blot is None else blot), groups, pair.seed)
            uses.append(size[who].mean >= LEAST and beyond.mean > 0 and not beyond.holds_zero)
        alike = correlation(deltas[0], deltas[1], groups, pair.seed)
        rng = np.random.default_rng([pair.seed, 0x0C])
        chance = correlation(deltas[0], deltas[1][rng.permutation(len(at))], groups, pair.seed)
        same = [
            bootstrap(same_action(one, other, space).astype(float), groups, pair.seed)
            for one, other in ((before[0][at], before[1][at]), (after[0], after[1]))
        ]
        differ = not bootstrap(far_of[0] - far_of[1], groups, pair.seed).holds_zero
        says = _verdict(uses, alike, differ, pair.names)
        rows.append([changed.name, len(at), *_pairs(size, control), text(alike), text(chance), *map(text, same), says])
        features.append(
            {
                "name": changed.name, "frames": len(at), "reaction": [asdict(each) for each in size], "control": control,
                "correlation": None if alike is None else asdict(alike), "used": uses, "verdict": says,
                "chance": None if chance is None else asdict(chance),
                "same_before": asdict(same[0]), "same_after": asdict(same[1]),
            }
        )  # fmt: skip
    if not features:
        return Section(NAME, TITLE, skipped="Nothing in these frames can be taken away: no objects, edits or features.")
    one, other = pair.names
    heads = ("change", "frames", one, "control", other, "control", "alike", "chance", "same action", "after", "verdict")
    caption = (
        "How far each one's action probabilities (Box: means) move, 0 to 1, when the same frames are changed; the memory is its "
        "own. Control: a blot of the same shape elsewhere; of vectors, the untrained twin's reaction. Alike: correlation of "
        "both reactions, with their signs; chance: frames shuffled. Same action: how often both choose the same, before and after."
    )
    return Section(
        NAME, TITLE, _statements(pair, features), tables=[Table(heads, rows, caption)], values={"features": features}
    )


def _blot(seen: Array, masks: BoolArray, taken: BoolArray, rng: np.random.Generator) -> Array:
    """Paint a blot of each mask's shape elsewhere, in the frame's mean colour; where there is no place, nothing changes."""
    beside = patch_beside(masks, taken, rng)
    mean = seen.mean((1, 2), keepdims=True).astype(seen.dtype)
    painted: Array = np.where(beside[..., None], mean, seen)
    return painted


def _edited(pair: AgentPair) -> Iterator[tuple[str, Array]]:
    """Yield each edit with what the frames show after it."""
    frames = pair.frames
    if not len(frames.episodes.env_states):
        return
    states = [
        bytes(frames.episodes.env_states[i][t]) for i, t in zip(frames.moments.rows, frames.moments.steps, strict=True)
    ]
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


def _control(pair: AgentPair, who: int, changed: Changed, before: FloatArray) -> FloatArray | None:
    """Return how far the control moves an agent's actions; of vectors, how far the change moves its untrained twin's."""
    if changed.control is not None:
        after = acts(pair.decide(who, changed.control, at=changed.at), pair.space)
        return moved(before[changed.at], after, pair.space)
    if not pair.frames.untrained[who]:
        return None
    plain, after = (acts(pair.decide(who, seen, at=changed.at, twin=0), pair.space) for seen in (None, changed.seen))
    return moved(plain, after, pair.space)


def _verdict(uses: list[bool], alike: MeanEstimate | None, differ: bool, names: tuple[str, str]) -> str:
    if all(uses):
        high = 1.0 if alike is None else alike.mean if alike.high is None else alike.high
        return ALIKE if high >= SAME else DIFFERENTLY
    if any(uses) and not differ:
        return UNSETTLED
    return f"only {names[uses.index(True)]} reacts" if any(uses) else "neither reacts"


def _pairs(size: list[MeanEstimate], control: list[float | None]) -> list[Any]:
    return [cell for who in (0, 1) for cell in (text(size[who]), control[who])]


def _statements(pair: AgentPair, features: list[dict[str, Any]]) -> list[Statement]:
    one, other = pair.names
    found = []
    for each in features:
        if not any(each["used"]):
            continue
        far = [MeanEstimate(**of) for of in each["reaction"]]
        said = (
            f"{each['name']}: {each['verdict']}. Actions of {one} move by {text(far[0])}, of {other} by {text(far[1])}"
        )
        if each["correlation"] is not None:
            said += f"; both reactions have a correlation of {text(MeanEstimate(**each['correlation']))}"
        found.append(Statement("uses", f"{said}.", max(of.mean for of in far)))
    return found


STEP = Step(NAME, TITLE, run)
