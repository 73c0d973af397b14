"""What an agent holds: the concepts that are read off it, their directions, and what taking them away does to its return.

"Taken away" has one meaning in a report: all directions of the concept (`Erasure`) are set to the middle of its classes at every
step of an episode, on the same held-out levels. The step "story" measures it; "interventions" takes its figures, or measures it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.agents.play import NotANumberError
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.agent.candidates import sensitivities
from rlhf_ray.interpret.agent.concepts import ELAPSED, concepts_at
from rlhf_ray.interpret.agent.controls import Controlled, controlled
from rlhf_ray.interpret.agent.effects import CausalEffect
from rlhf_ray.interpret.agent.erasure import (
    Classes,
    Erasure,
    Held,
    Neighbour,
    erasures,
    followed,
    is_gone,
    is_taken,
    reading,
)
from rlhf_ray.interpret.agent.recall import Recall
from rlhf_ray.interpret.agent.rewriting import taken_in_the_loop
from rlhf_ray.interpret.agent.sharing import of_own_part, sharing, with_shared
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.story import READ, Origin, origin
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.directions import Directions, labels
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention, Op
from rlhf_ray.measure.intervals import MeanEstimate

FITTED = 6000
"""Steps that directions are fitted to."""
LEVELS, FEWEST_LEVELS = 120, 60
"""Levels that are played again with an intervention."""
CONCEPTS, FEWEST_CONCEPTS = 8, 4
ALIKE = 0.05
"""Concepts are read alike if their AUC differ by less; then those that the action depends on most and least come first."""
COPIES = 120
LONGEST = 1000
"""Steps after which an episode is cut."""
SAME = 0.98
"""Share of steps at which two concepts say the same, or the opposite, from which on they count as one."""


@dataclass(frozen=True)
class HeldConcept:
    """A concept that is read off the agent.

    Attributes:
        erasure: its directions, and what their removal leaves.
        auc_random: the largest AUC of random directions.
        classes: its classes.
        sensitivity: see `rlhf_ray.interpret.agent.candidates.Candidate`.
        whole: where the erasure is only of its own part: that of all of it, before a memory writes it again.
        shares: the concepts that what it shares may belong to; see `rlhf_ray.interpret.agent.sharing.sharing`.
    """

    erasure: Erasure
    auc_random: float
    classes: Classes
    sensitivity: float
    whole: Erasure | None = None
    shares: Sequence[str] = ()


@dataclass(frozen=True)
class Removed:
    """What taking a concept away does to whole episodes.

    Attributes:
        file: its directions.
        directions: how many there are.
        auc, erased, shared, bound, neighbours, follows, rewritten: see `Erasure`.
        sensitivity: see `HeldConcept`.
        effect, random, variance, random_variance: see `Controlled`.
        recalled: see `rlhf_ray.interpret.agent.recall.recalled`.
        own_part: see `rlhf_ray.interpret.agent.sharing.of_own_part`.
    """

    file: str
    directions: int
    auc: float
    erased: float
    shared: float
    bound: float
    neighbours: list[Neighbour]
    sensitivity: float
    effect: CausalEffect
    random: list[CausalEffect]
    variance: float
    random_variance: list[float]
    recalled: MeanEstimate | None = None
    follows: list[str] = field(default_factory=list)
    rewritten: float = 0.0
    own_part: bool = False

    @property
    def origin(self) -> Origin:
        """Where it comes from."""
        return origin(self.recalled)

    @property
    def taken(self) -> bool:
        """Whether the memory does not write it again while it is taken away: else its figures are not of a removal."""
        return is_taken(self)

    @property
    def settles(self) -> bool:
        """Whether an absent effect means something: the concept is gone, and no return changed without a control as large."""
        return self.gone and (self.result.matched or not self.result.changes)

    @property
    def gone(self) -> bool:
        """Whether the concept is gone; see `is_gone`."""
        return is_gone(self)

    @property
    def result(self) -> Controlled:
        """The effect beside those of random directions."""
        return Controlled(self.effect, self.random, self.variance, self.random_variance)


def held_concepts(context: AgentContext, least: float = READ) -> tuple[FloatArray, dict[str, HeldConcept]]:
    """Return what the agent holds at recorded steps, ``[n, size]``, and the concepts that are read off it.

    Held-out levels tell how well a concept is read. Of concepts that are read alike, half are those that the action depends on
    most, and half those that it depends on least: they may be held and not needed. Time is always among them, if it is read.

    Args:
        context: the study's.
        least: AUC from which on a concept is read.
    """
    subject, site = context.subject, site_of(context.subject.agent)
    train, test = recorded(context, "train"), recorded(context, "test")
    moments, other = (draw_steps(each.real, FITTED, context.rng(f"held {at}")) for at, each in enumerate((train, test)))
    values, unseen = (
        at.cut(values_at(subject.agent, each, site)).astype(np.float64)
        for at, each in ((moments, train), (other, test))
    )
    known, theirs = (
        {name: at.cut(each) for name, each in concepts_at(side).items()}
        for at, side in ((moments, train), (other, test))
    )
    classes = {name: Classes.fit(each) for name, each in known.items() if labels.usable(each) and name in theirs}
    fit, held_out = (
        Held(inside, {name: border.every(told[name]) for name, border in classes.items()})
        for inside, told in ((values, known), (unseen, theirs))
    )
    apart = distinct({name: fit.first(name) for name in classes})
    found = erasures(fit, held_out, list(apart), least)
    rng = context.rng("held")
    sizes = {
        name: float(sensitivities(subject.agent, test, site, one.basis, rng).max())
        if len(test.observations[0, 0])
        else 0.0
        for name, one in found.items()
    }
    order = sorted(found, key=lambda name: (-round(found[name].auc / ALIKE), -sizes[name]))
    count = max(FEWEST_CONCEPTS, round(CONCEPTS * min(1.0, subject.effort)))
    chosen = both_ends(order, [round(found[name].auc / ALIKE) for name in order], count)
    if (
        ELAPSED in order and ELAPSED not in chosen
    ):  # every agent can count its steps, and no reward depends on that by itself
        chosen = [*chosen[:-1], ELAPSED]

    def by_chance(name: str) -> float:
        random = random_bases(found[name].basis, [0], values, None)
        return max((reading(each, unseen, held_out.first(name)) for each in random), default=0.5)

    levels = np.unique(train.levels)[: subject.count(LEVELS, FEWEST_LEVELS)]
    held, follows = {}, followed(chosen, list(found), fit, held_out)
    for number, name in enumerate(chosen):
        context.say(f"whether {name} stays away ({number + 1} of {len(chosen)})")
        one = replace(found[name], follows=follows[name])
        one = taken_in_the_loop(subject, one, name, classes, values, levels)
        shares = sharing(found, fit, name) if of_own_part(one) else []
        whole = with_shared(found, fit, held_out, name, shares)
        held[name] = HeldConcept(one, by_chance(name), classes[name], sizes[name], whole, shares)
    return values, held


def as_a_whole(context: AgentContext, name: str, one: HeldConcept) -> HeldConcept:
    """Return a concept with the directions of all that it shares with others."""
    subject, train = context.subject, recorded(context, "train")
    values = values_at(subject.agent, train, site_of(subject.agent))[train.real].astype(np.float64)
    levels = np.unique(train.levels)[: subject.count(LEVELS, FEWEST_LEVELS)]
    if one.whole is None:
        return one
    whole = taken_in_the_loop(subject, one.whole, name, {name: one.classes}, values, levels)
    return replace(one, erasure=replace(whole, follows=one.erasure.follows), whole=None)


def both_ends(order: Sequence[str], ranks: Sequence[int], count: int) -> list[str]:
    """Return the first of ``order``, and the last of those with the rank of the last that fits."""
    if len(order) <= count:
        return list(order)
    alike = [name for name, rank in zip(order, ranks, strict=True) if rank >= ranks[count - 1]]
    first = -(-count // 2)
    return alike[:first] + alike[len(alike) - (count - first) :]


def distinct(classes: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Leave out concepts that nearly always say the same, or the opposite, as one before: they have one direction."""
    found: dict[str, FloatArray] = {}
    for name, concept in classes.items():
        both = [(other, np.isfinite(concept) & np.isfinite(other)) for other in found.values()]
        same = [(concept[known] == other[known]).mean() for other, known in both if known.any()]
        if not any(share > SAME or share < 1.0 - SAME for share in same):
            found[name] = concept
    return found


def levels_of(context: AgentContext) -> tuple[IntArray, Episodes, IntArray]:
    """Return the held-out levels that interventions are played on, their episodes without one, and which levels are the same."""
    subject = context.subject
    levels = np.unique(recorded(context, "test").levels)[: subject.count(LEVELS, FEWEST_LEVELS)]
    return levels, subject.play(levels, max_steps=LONGEST, frames=False), subject.groups(levels)


def taken_away(
    context: AgentContext,
    held: Mapping[str, HeldConcept],
    values: FloatArray,
    played: tuple[IntArray, Episodes, IntArray],
    only: Sequence[str] | None = None,
) -> dict[str, Removed]:
    """Take each concept away, or some ``only``, and save its directions to the step's folder.

    Those that make the memory grow without end are left out.
    """
    removed = {}
    recall = Recall.of(context)
    for number, (name, one) in enumerate(held.items()):
        if only is not None and name not in only:
            continue
        context.say(f"playing without {name} ({number + 1} of {len(held)})")
        file, found = f"direction_{number}.npz", one.erasure
        found.basis.save(context.out / file)
        try:
            result = intervened(
                context,
                found.basis,
                range(len(found.basis)),
                "ablate_midpoint",
                values,
                played,
                filters_beside(held, name),
            )
        except NotANumberError:  # it, or a random direction, drives the memory beyond all numbers
            context.say(f"left out: the memory grows without end where {name} is taken away")
            continue
        come = recall.of_concept(name, one.classes, found.basis, found.others)
        removed[name] = Removed(
            file, len(found.basis), found.auc, found.erased, found.shared, found.bound, found.neighbours, one.sensitivity,
            result.effect, result.random, result.variance, result.random_variance, come, list(found.follows),
            found.rewritten, of_own_part(found),
        )  # fmt: skip
    return removed


def filters_beside(held: Mapping[str, HeldConcept], name: str) -> FloatArray | None:
    """Return the filters ``[k, size]`` of the other concepts, which random removals leave as they are; None without others."""
    filters = [one.erasure.basis.filters[:1] for other, one in held.items() if other != name]
    return np.concatenate(filters) if filters else None


def intervened(
    context: AgentContext,
    basis: Directions,
    components: Sequence[int],
    op: Op,
    values: FloatArray,
    played: tuple[IntArray, Episodes, IntArray],
    hold: FloatArray | None = None,
) -> Controlled:
    """Play levels with an intervention at every step, and with the same one on random directions.

    Args:
        context: the study's.
        basis: the directions.
        components: those to change.
        op: the operation; "ablate_midpoint" takes them away.
        values: what the site holds, ``[n, size]``.
        played: of `levels_of`.
        hold: see `filters_beside`.
    """
    subject, (levels, plain, groups) = context.subject, played
    site = site_of(subject.agent)
    return controlled(
        subject.agent, subject.make_batch, levels, lambda one, at: Intervention(one, at, op, site=site), basis, components,
        values, plain=plain, groups=groups, hold=hold, copies=COPIES, seed=subject.seed, mapper=context.mapper,
    )  # fmt: skip
