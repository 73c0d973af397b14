"""What the agent uses: effects of edits of the world, hidden objects, other observations, other memory and removed directions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import NotANumberError, site_of, values_at
from rlhf_ray.agents.recorded import load_episodes
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.changes import (
    Change,
    edits,
    hidden_objects,
    masks_at,
    objects_in,
    other_memory,
    other_sights,
)
from rlhf_ray.interpret.agent.concepts import concept_directions
from rlhf_ray.interpret.agent.effects import ACTIONS, COLUMNS, RETURN, Bench
from rlhf_ray.interpret.agent.steps.header import Achieved
from rlhf_ray.interpret.agent.subject import (
    AgentContext,
    AgentSubject,
    nothing_inside,
    nothing_recorded,
    split_episodes,
)
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Effects, Section
from rlhf_ray.study.step import Step

NAME, TITLE = "effects", "What it uses"

LEVELS, FEWEST, FRAMES = 60, 20, 100_000
"""New levels at effort 1, and fewest; frames that a change is tried on: fewer levels if episodes are long."""
MOMENTS, LONGEST = 6, 1000
"""Moments of each level at which a change is made once; steps after which an episode is cut."""
NUMBERS = 16
"""Numbers of an observation that are exchanged each alone, at most."""
FITTED, COMPONENTS, CONCEPTS, RANDOM = 4000, 6, 16, 5
"""Steps that directions are fitted to; principal components and concepts that are removed; random directions beside each."""
MEANING = """\
actions changed: the share of levels in which any action changes at all (but ties), whether the change is made throughout or in \
one step. return: its change with the change throughout; one moment: with the change in one step, that after which \
most actions differ; in units of {unit:.3g}{why}. value: its mean absolute change at once, in standard deviations. \
{levels} levels."""


@dataclass(frozen=True)
class Uses:
    """What the step finds, for other steps: the share of levels in which any action changes, by row, and its control."""

    unit: float
    actions: dict[str, MeanEstimate]
    controls: dict[str, float]


def run(context: AgentContext) -> Section:
    """Measure each change on new levels."""
    subject = context.subject
    achieved = context.figures("header", Achieved)
    unit = 1.0 if achieved is None else achieved.unit
    few = load_episodes(context.folders["recording"], most=FEWEST, frames=False)
    most = subject.effort * FRAMES / (MOMENTS + 2) / float(few.lengths.mean())
    count = max(FEWEST, min(subject.count(LEVELS), int(most)))
    levels = np.sort(context.rng("levels").choice(2**31 - 1, count, replace=False))
    plain, notes = _play(subject, levels)
    groups = subject.groups(levels)
    bench = Bench(subject.agent, subject.make_batch, plain, groups, unit, MOMENTS, LONGEST)
    tables = {
        "inputs": ("What it sees, and the world", _inputs(subject, plain, groups)),
        "inside": ("Directions of its hidden state, removed", _inside(context)),
    }
    better = achieved is not None and achieved.earns
    why = ", what it gets more than random actions do" if better else ""
    meaning = MEANING.format(unit=unit, why=why, levels=len(np.unique(groups)))
    least = 0.0 if better else _untrained(context, levels, groups)
    effects = []
    for name, (title, changes) in tables.items():
        rows = []
        for number, change in enumerate(changes):
            context.say(f"{change.name} ({number + 1} of {len(changes)})")
            try:
                row = bench.effect(change)
                rows.append(replace(row, control=max(row.control or 0.0, least)))
            except NotANumberError:
                notes.append(f"{change.name} is left out: with it, the agent's numbers grow without end.")
        control = CONTROLS[name] if better else f"{CONTROLS[name]} {EARNS_NOTHING}"
        rows.sort(key=lambda row: -abs(row.figures[RETURN].mean))
        if rows:
            effects.append(Effects.sort(name, title, COLUMNS, rows, f"{meaning} {control}"))
    every = {row.name: row for table in effects for row in table.rows}
    actions = {name: row.figures[ACTIONS] for name, row in every.items()}
    figures = Uses(unit, actions, {name: row.control or 0.0 for name, row in every.items()})
    return Section(NAME, TITLE, (), effects, (), (), notes, values_of(figures))


def _untrained(context: AgentContext, levels: IntArray, groups: IntArray) -> float:
    """Return the largest share of levels in which an untrained copy's actions change with what it sees; 0 if none can be made."""
    fresh = context.subject.agent.fresh(context.subject.seed + 1)
    if fresh is None:
        return 0.0
    subject = replace(context.subject, agent=fresh)
    plain, _ = _play(subject, levels)
    bench = Bench(fresh, subject.make_batch, plain, groups, 1.0, MOMENTS, LONGEST)
    return max(bench.ever(change).mean for change in _inputs(subject, plain, groups))


EARNS_NOTHING = (
    "Of an agent that earns no more than random actions: at least the largest share of an untrained copy of it."
)
CONTROLS = {
    "inputs": "control: the same share when nothing is changed; of hidden objects, when as much background is painted over.",
    "inside": f"control: the largest share of {RANDOM} random directions that carry as much variance and leave the row's as it is.",
}


def _play(subject: AgentSubject, levels: IntArray) -> tuple[Episodes, list[str]]:
    """Play the levels without a change, and keep states; without states, say so."""
    try:
        return subject.play(levels, max_steps=LONGEST, keep_states=True), []
    except SettingError as error:
        note = (
            f"The world can't go back to a step ({error}): its edits are tried at {MOMENTS} moments of each level only."
        )
        return subject.play(levels, max_steps=LONGEST), [note]


def _inputs(subject: AgentSubject, plain: Episodes, groups: IntArray) -> list[Change]:
    """Return the edits, hidden objects, and other observations and memory."""
    space = subject.agent.observation_space
    with closing(subject.make_batch(min(len(plain), 32))) as batch:
        changes = edits(batch, plain)
        if is_image(space) and len(plain.env_states):
            states = [plain.env_states[row][int(length) // 2] for row, length in enumerate(plain.lengths)]
            changes += hidden_objects(objects_in(masks_at(batch, states)), subject.seed)
    partners = _partners(groups)
    vector = len(space.shape or ()) == 1
    names = feature_names(space) if vector and plain.observations.shape[-1] <= NUMBERS else []
    changes += other_sights(plain, partners, names)
    return changes + (other_memory(plain, partners) if subject.agent.memory_size else [])


def _partners(groups: IntArray) -> IntArray:
    """Return for each level another one with other contents, ``[n]``; the next one if there is none."""
    count = len(groups)
    found = (np.arange(count) + 1) % count
    for row in range(count):
        others = np.flatnonzero(groups != groups[row])
        if len(others):
            found[row] = others[np.argmin((others - row - 1) % count)]
    return found


def _inside(context: AgentContext) -> list[Change]:
    """Return the removal of concepts' directions and of principal components."""
    agent = context.subject.agent
    if nothing_inside(context) is not None:
        return []
    site, fitted = site_of(agent), split_episodes(context, "train", context.subject.count(300, 40))
    values = values_at(agent, fitted, site)[fitted.real].astype(np.float64)
    some = np.sort(context.rng(NAME).permutation(len(values))[:FITTED])
    bases = concept_directions(fitted, values, some)[:CONCEPTS]
    principal = directions.fit("pca", values[some], COMPONENTS, context.subject.seed)
    bases += [principal.part([at]) for at in range(len(principal))]
    seed = context.subject.seed
    return [removal(one, site, random_bases(one, [0], values[some], count=RANDOM, seed=seed)) for one in bases]


def removal(basis: Directions, site: str, random: Sequence[Directions] = ()) -> Change:
    """Return the removal of a direction: its score is held halfway between its ends."""

    def held(one: Directions) -> Intervention:
        return Intervention(one, range(len(one)), "ablate_midpoint", site=site)

    controls = tuple(Change(one.names[0], hook=held(one)) for one in random)
    return Change(basis.names[0], hook=held(basis), controls=controls)


STEP = Step(NAME, TITLE, run, needs=("recording", "header"), why_not=nothing_recorded)
