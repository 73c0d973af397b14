"""What does the agent die of when a kind of object is hidden from its eyes, and stays in the world?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.effects import Change
from rlhf_ray.interpret.agent.hiding import HiddenObject, HidingBatch, compare, objects_in
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import WORDS as SHARED
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Section, Statement, Strength, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

LEVELS, FEWEST = 300, 20
"""Held-out levels at effort 1, and fewest."""
FRAMES = 200_000
"""Frames that are painted at effort 1: fewer levels if episodes are long."""
COPIES, LONGEST = 64, 500
"""Levels that are played at a time; steps after which an episode is cut."""
UNMOVED = 0.01
"""Share of the actions up to which the agent does not react: as of edits, what ties and rounding may change."""


@dataclass(frozen=True)
class HiddenObjects:
    """What the step finds: the levels, how many are distinct, and the effect of hiding each kind of object."""

    levels: int
    distinct: int
    objects: dict[str, HiddenObject]


def why_not(context: AgentContext) -> str | None:
    """Return why nothing can be hidden, and what the environment would have to offer; None if something can."""
    if "recording" not in context.folders:
        return SHARED.text("no_recording")
    batch = context.subject.make_batch(1)
    try:
        batch.reset([0])
        image = is_image(batch.observation_space)
        if image and batch.masks():
            return None
        return WORDS.text("no_masks" if image else "no_images", environment=batch.name)
    finally:
        batch.close()


def run(context: AgentContext) -> Section:
    """Play held-out levels with each kind of object hidden, and with as large a patch hidden elsewhere."""
    subject = context.subject
    levels = np.unique(split_episodes(context, "test", subject.count(LEVELS, FEWEST)).levels)
    first = levels[:FEWEST]
    seen, areas = _play(context, first)
    kinds = objects_in(areas)
    if not kinds:
        return WORDS.skipped("no_objects")
    frames = subject.effort * FRAMES / (1 + 2 * len(kinds))
    levels = levels[: max(FEWEST, int(frames / float(seen.lengths.mean())))]
    plain = seen if len(levels) == len(first) else Episodes.concatenate([seen, _play(context, levels[FEWEST:])[0]])
    groups = subject.groups(levels)
    objects = {}
    for kind in kinds:
        context.say(f"hiding {kind}")
        hidden, control = (_play(context, levels, kind, control)[0] for control in (False, True))
        objects[kind] = compare(kind, plain, hidden, control, subject.agent.action_space, groups)
    figures = HiddenObjects(len(levels), len(np.unique(groups)), objects)
    return WORDS.section(_statements(figures), tables=_tables(figures), figures=figures)


def _play(
    context: AgentContext, levels: IntArray, kind: str = "", control: bool = False
) -> tuple[Episodes, dict[str, float]]:
    subject = context.subject
    batch = HidingBatch(subject.make_batch(min(COPIES, len(levels))), kind, control, subject.seed)
    try:
        return play(subject.agent, batch, levels, max_steps=LONGEST, frames=False), batch.areas
    finally:
        batch.close()


def _statements(figures: HiddenObjects) -> Iterator[Statement]:
    for kind, one in figures.objects.items():
        values = {"kind": kind, "one": one, "figures": figures}
        if one.costs:
            yield WORDS.statement("needs", *_size(one), **values)
        elif one.hidden.acts.mean <= UNMOVED:
            yield WORDS.statement("ignores", 1.0 - one.hidden.acts.mean, **values)


def _size(one: HiddenObject) -> tuple[float, Strength]:
    """Return the largest effect, as a share of the largest possible, and how strong its evidence is."""
    returns = one.hidden.returns
    unit = 1.0 / max(abs(returns.before), 1e-9)
    sizes = [(returns.difference.scaled(unit), one.control.returns.difference.scaled(unit))]
    if one.own is not None:
        sizes.append((one.own.share.difference, one.own.control.difference))
    size, control = max(sizes, key=lambda pair: abs(pair[0].mean))
    return abs(size.mean), strength(size, control.mean)


def _tables(figures: HiddenObjects) -> Iterator[Table]:
    rows = []
    for kind, one in figures.objects.items():
        rows.append([kind, WORDS.text("returns"), *_cells(one.hidden.returns, one.control.returns), ""])
        for cause in sorted({*one.hidden.outcomes, *one.control.outcomes}):
            hidden, control = (side.outcomes.get(cause) for side in (one.hidden, one.control))
            own = estimate(one.own.selectivity) if cause == kind and one.own is not None else ""
            rows.append([kind, WORDS.text("ends", cause=cause), *_cells(hidden, control), own])
    yield WORDS.table("objects", rows, figures=figures)


def _cells(hidden: Change | None, control: Change | None) -> list[str]:
    shares = hidden or control  # an end that never comes about on one side has a share of 0 there, and none in view
    assert shares is not None
    changes = ["0.00" if change is None else estimate(change.difference) for change in (hidden, control)]
    return [f"{shares.before:.2f}", "0.00" if hidden is None else f"{hidden.after:.2f}", *changes]


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording",), why_not=why_not)
