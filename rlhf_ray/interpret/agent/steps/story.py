"""The causal story: from an object or concept over its direction to the action, with a verdict for each chain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments, draw_steps
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.action_groups import RARE, Behaviour, behaviours_of
from rlhf_ray.interpret.agent.candidates import FEWEST_OF_CLASS
from rlhf_ray.interpret.agent.chains import ChainMoments, Response, measure, sees, swapped
from rlhf_ray.interpret.agent.concepts import ELAPSED, concepts_at
from rlhf_ray.interpret.agent.counterfactual import Counterfact, Snapshots, counterfact, go_on, snapshots_of
from rlhf_ray.interpret.agent.edits import SMALL, unheard
from rlhf_ray.interpret.agent.held import HeldConcept, Removed, as_a_whole, held_concepts, levels_of, taken_away
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.story import NONE, READ, CausalChain, EditedLevel, Link
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.interpret.directions.controls import COUNT
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean, share_interval
from rlhf_ray.study.plots import EffectRow, draw_effects
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

MOMENTS, FEWEST_MOMENTS = 400, 120
"""Moments that links are measured at."""
BEHAVIOURS = 2
EDITED, AHEAD = 100, 4
"""Levels that are edited; steps after a moment that a behaviour is counted in."""
LONGEST = 1000
"""Steps after which an episode is cut."""
CHANGED = 0.5
"""Share of levels in which an edit at the start has to change a concept."""
SHOWN = 6
"""Chains in the picture."""
ORDER = (
    "both",
    "necessary",
    "sufficient",
    "contributes",
    "jointly",
    "acts",
    "spurious",
    "decodable only",
    "not settled",
    "not read off",
)
USES, HOLDS = ORDER[:6], ORDER[6:8]
"""Verdicts that the report says something of."""


@dataclass(frozen=True)
class Story:
    """What the step finds.

    Attributes:
        site: where the directions are.
        moments: moments that links are measured at.
        random: random directions beside each.
        swapped: share of the moments at which the agent acts otherwise with the memory of another one; None without memory.
        removed: what taking each concept away does; the file of its directions.
        chains: all chains; those that matter most come first.
        sees: of concepts that the agent acts on by what it sees of them: the share of moments; see `sees`.
    """

    site: str
    moments: int
    random: int
    swapped: float | None
    removed: dict[str, Removed]
    chains: list[CausalChain]
    sees: dict[str, MeanEstimate] = field(default_factory=dict)


def run(context: AgentContext) -> Section:
    """Measure the chains of all concepts that can be read off, and of the agent's most varied behaviours."""
    subject = context.subject
    site, test = site_of(subject.agent), recorded(context, "test")
    values, concepts = held_concepts(context, READ)
    behaviours = behaviours_of(test, subject.agent.action_space, subject.action_names)[:BEHAVIOURS]
    if not behaviours:
        return WORDS.skipped("one_behaviour", rare=RARE)
    if not concepts:
        return WORDS.skipped("nothing_read", site=subject.site_name, least=READ)
    moments = draw_steps(test.real, subject.count(MOMENTS, FEWEST_MOMENTS), context.rng("moments"))
    groups, theirs = subject.groups(test.levels), concepts_at(test)
    holding = {name: concept.classes(moments.cut(theirs[name])) for name, concept in concepts.items()}
    played = levels_of(context)
    removed = taken_away(context, concepts, values, played)
    concepts = {name: concept for name, concept in concepts.items() if name in removed}
    pairs = _counterfacts(context, test)
    silent = unheard(pairs, subject.agent.action_space, subject.groups)
    other = swapped(subject.agent, ChainMoments.cut_from(test, moments), subject.seed)

    def chains_of(name: str) -> list[CausalChain]:
        holds, concept = holding[name], concepts[name]
        if min((holds == 1).sum(), (holds == 0).sum()) < FEWEST_OF_CLASS:
            return []
        known = np.isfinite(holds)
        measured = replace(ChainMoments.cut_from(test, moments[known]), levels=groups[moments[known].rows])
        links = measure(
            subject.agent, measured, holds[known] == 1, behaviours, concept.erasure.basis, values,
            (concept.erasure.auc, concept.auc_random),
            others={label: each[known] for label, each in holding.items() if label != name},
            respond=_respond_later(context, test, measured, behaviours), site=site, seed=subject.seed,
        )  # fmt: skip
        edited, one = _edit_levels(context, pairs, {name: concept}, behaviours, site), removed[name]
        return [
            replace(
                chain,
                yes_no=concept.classes.yes_no,
                success=_success(one) if one.taken else None,
                edited=edited.get((name, chain.behaviour)),
                returns=one.effect.returns if one.taken else None,
                settles=one.settles,
                inert=other == 0.0,
                recalled=one.recalled,
                own_part=one.own_part,
            )
            for chain in links
        ]

    told: dict[str, list[CausalChain]] = {}
    for number, name in enumerate(concepts):
        context.say(f"the story of {name} ({number + 1} of {len(concepts)})")
        told[name] = chains_of(name)
    for name in shared_parts(told, concepts, silent):
        context.say(f"the story of all of {name}")
        whole = concepts | {name: as_a_whole(context, name, concepts[name])}
        again = taken_away(context, whole, values, played, [name])
        if again:
            silent = silent | set(concepts[name].shares)
            concepts, removed = whole, removed | again
            told[name] = chains_of(name)
    removed = _without_silent(removed, told, silent)
    chains = [chain for each in told.values() for chain in each]
    if not chains:
        return WORDS.skipped("nothing_varies")
    chains = [replace(chain, control=_strongest(chain, chains)) for chain in chains]
    chains.sort(key=lambda chain: (ORDER.index(chain.verdict), -chain.largest))
    at = replace(ChainMoments.cut_from(test, moments), levels=groups[moments.rows])
    sight = {name: sees(subject.agent, at, moments.cut(theirs[name]), subject.seed) for name in removed}
    seen = {name: share for name, share in sight.items() if share is not None and share.beyond(SMALL)}
    figures = Story(site, len(moments), COUNT, other, removed, chains, seen)
    statements = [*_statements(chains, removed, subject.site_name, seen, len(moments), silent)]
    if other == 0.0:
        statements.append(WORDS.statement("inert", 1.0, moments=len(moments)))
    elif other is not None:
        acts = share_interval(other * len(moments), len(moments))
        if acts.beyond(NONE):
            statements.append(WORDS.statement("memory", 0.1, strength(acts), share=acts, moments=len(moments)))
    picture = WORDS.picture("story", _draw(chains[:SHOWN]))
    return WORDS.section(statements, [_check(chains)], [_table(chains)], [picture], figures)


def _respond_later(
    context: AgentContext, test: Episodes, moments: Moments, behaviours: Sequence[Behaviour]
) -> Response | None:
    """Return the response in the environment: what the agent does in its next steps, and its value; None without its states."""
    if not len(test.env_states):
        return None
    subject, snapshots = context.subject, snapshots_of(test, moments.rows, moments.steps)

    def respond(chosen: IntArray, interventions: Sequence[Intervention]) -> FloatArray:
        episodes, _ = go_on(
            subject.agent, subject.make_batch, snapshots[chosen], interventions=interventions, steps=AHEAD, mapper=context.mapper
        )  # fmt: skip
        value = (episodes.values * episodes.real).sum(1) / np.maximum(episodes.lengths, 1)
        return np.stack([*(behaviour.frequency(episodes) for behaviour in behaviours), value], 1)

    return respond


def _success(removed: Removed) -> Link:
    """Return what taking a concept away throughout does to the return, as a share of the return."""
    share = 1.0 / max(abs(removed.effect.returns.before), 1e-9)
    change = removed.effect.returns.difference.scaled(share)
    random = [share * control.returns.difference.mean for control in removed.random]
    return Link(change, random, removed.result.matched)


def _edit_levels(
    context: AgentContext,
    pairs: Sequence[tuple[str, bool, Counterfact]],
    concepts: Mapping[str, HeldConcept],
    behaviours: Sequence[Behaviour],
    site: str,
) -> dict[tuple[str, str], EditedLevel]:
    """Return what editing the level does to score and behaviour, by concept and behaviour, of the edit that moves the score most.

    The level is edited at the start, where that changes the concept, and at single moments otherwise.
    """
    subject, effects = context.subject, dict[tuple[str, str], EditedLevel]()
    for edit, at_start, pair in pairs:
        sides, groups = (pair.plain, pair.changed), subject.groups(pair.plain.levels)
        for name, concept in concepts.items():
            before, after = (concepts_at(side).get(name) for side in sides)
            if before is None or after is None or name == ELAPSED:
                continue
            flips = np.nan_to_num(concept.classes(after[:, 0]) - concept.classes(before[:, 0]))
            rows = np.flatnonzero(flips)
            if len(rows) < max(CHANGED * at_start * len(flips), FEWEST_OF_CLASS):
                continue
            levels = groups[rows]
            score = estimate_mean(_moved_by(subject.agent, sides, rows, concept, site) * flips[rows], levels)
            for behaviour in behaviours:
                acts = [behaviour.frequency(side.select(rows)) for side in sides]
                key = name, behaviour.name
                if key not in effects or abs(score.mean) > abs(effects[key].score.mean):
                    action = estimate_mean((acts[1] - acts[0]) * flips[rows], levels)
                    effects[key] = EditedLevel(edit, score, action)
    return effects


def _moved_by(agent: Agent, sides: Sequence[Episodes], rows: IntArray, concept: HeldConcept, site: str) -> FloatArray:
    """Return by how much a concept's score differs between two sides, ``[rows]``, at the step at which it differs most."""
    steps = min(side.real.shape[1] for side in sides)
    both = np.logical_and(*(side.real[rows, :steps] for side in sides))
    values = [values_at(agent, side, site)[rows, :steps].astype(np.float64) for side in sides]
    shape = both.shape
    scores = [concept.erasure.basis.encode(each.reshape(-1, each.shape[-1]))[:, 0].reshape(shape) for each in values]
    moved = np.where(both, scores[1] - scores[0], 0.0)
    return np.asarray(moved[:, int(np.abs(moved).sum(0).argmax())])


def _counterfacts(context: AgentContext, test: Episodes) -> list[tuple[str, bool, Counterfact]]:
    """Make each edit at the start of held-out levels, to their end, and at moments, for one step."""
    try:
        return _edits_made(context, test)
    except SettingError:
        return []


def _edits_made(context: AgentContext, test: Episodes) -> list[tuple[str, bool, Counterfact]]:
    subject = context.subject
    count = subject.count(EDITED, 2 * FEWEST_OF_CLASS)
    levels = np.unique(test.levels)[:count]
    if not subject.edits:
        return []
    again = subject.play(levels, max_steps=LONGEST, keep_states=True)
    starts = snapshots_of(again, np.arange(len(again)), np.zeros(len(again), np.int64))
    counterfacts = []
    for edit in subject.edits:
        moments = draw_steps(again.real, 3 * count, context.rng(f"edit {edit}"))
        later = snapshots_of(again, moments.rows, moments.steps)
        conditions: tuple[tuple[bool, Snapshots, int], ...] = ((True, starts, LONGEST), (False, later, 1))
        for at_start, snapshots, steps in conditions:
            pair = counterfact(
                subject.agent, subject.make_batch, snapshots, edit=edit, steps=steps, mapper=context.mapper
            )
            if pair is not None:
                counterfacts.append((edit, at_start, pair))
    return counterfacts


def _strongest(chain: CausalChain, chains: Sequence[CausalChain]) -> MeanEstimate:
    """Return the largest change of a chain's behaviour by any direction."""
    same = [one for one in chains if one.behaviour == chain.behaviour]
    changes = [link.change for one in same for link in (one.removed, one.moved, one.back)]
    return max([chain.control, *changes], key=lambda one: (not one.holds_zero, abs(one.mean)))


def shared_parts(
    told: Mapping[str, Sequence[CausalChain]], concepts: Mapping[str, HeldConcept], silent: Collection[str]
) -> list[str]:
    """Return the concepts of which what they share is theirs: they act by their own part, and those they share it with don't."""
    idle = {name for name, chains in told.items() if chains and all(chain.verdict in HOLDS for chain in chains)} | set(
        silent
    )
    uses = [name for name, chains in told.items() if any(chain.verdict in USES for chain in chains)]
    return [name for name in uses if concepts[name].whole is not None and idle.issuperset(concepts[name].shares)]


def _without_silent(
    removed: Mapping[str, Removed], told: Mapping[str, Sequence[CausalChain]], silent: Collection[str]
) -> dict[str, Removed]:
    """Leave out neighbours that the agent does not act on, or that its memory does not hold itself.

    Of these, edits change nothing that it does; or they follow other concepts, and their edit moves no score.
    """
    follow = {
        name
        for name, chains in told.items()
        for chain in chains
        if chain.edited is not None and chain.edited.silent and removed[name].follows
    }
    out = follow | set(silent)
    return {
        name: replace(
            one,
            neighbours=[near for near in one.neighbours if near.concept not in out],
            follows=one.follows if name in silent else [near for near in one.follows if near not in silent],
        )
        for name, one in removed.items()
    }


def _statements(
    chains: Sequence[CausalChain],
    removed: Mapping[str, Removed],
    site: str,
    seen: Mapping[str, MeanEstimate] = {},
    moments: int = 0,
    silent: Collection[str] = (),
) -> Iterator[Statement]:
    """Say of each concept what it does; of those that follow others, or are not settled, that."""
    told = [chain for chain in chains if chain.verdict in (*USES, *HOLDS)]
    uses = {chain.concept for chain in told if chain.verdict in USES}
    moved = {chain.concept for chain in chains if chain.edited is not None and chain.edited.acts} | seen.keys()
    for name, share in seen.items():
        if name not in uses:
            yield WORDS.statement(
                "sees", share.mean, strength(share), name=name, share=share, moments=moments, site=site
            )
    follow = [name for name in uses if removed[name].follows and uses.issuperset(removed[name].follows)]
    yield from (
        WORDS.statement("follows", removed[name].auc, name=name, one=removed[name], site=site) for name in follow
    )
    for chain in told:
        name = chain.concept
        if name not in follow:
            names = dict.fromkeys([name, *(near.concept for near in removed[name].neighbours), *removed[name].follows])
            left = [each for each in names if each not in silent]  # that the agent does not act on it is known
            yield _statement(chain, site, left or list(names), name in moved)
    for name in dict.fromkeys(chain.concept for chain in chains):
        if name not in {chain.concept for chain in told}:
            yield _taken_away(name, removed[name], site)


def _taken_away(name: str, one: Removed, site: str) -> Statement:
    """Say what taking a concept away does to the return, where no behaviour says what it does."""
    change = one.effect.returns
    unit, random = 1.0 / max(abs(change.before), 1e-9), [each.returns.difference.mean for each in one.random]
    values = {"name": name, "one": one, "site": site, "random": random}
    if not (one.taken and one.result.changes and one.result.matched):
        return WORDS.statement("unsettled", abs(change.difference.mean), **values)
    strong = strength(change.difference.scaled(unit), unit * max(map(abs, random), default=0.0))
    return WORDS.statement("needs" if change.difference.mean < 0 else "costs", 0.0, strong, **values)


def _statement(chain: CausalChain, site: str, concepts: Sequence[str] = (), moved: bool = False) -> Statement:
    weight = chain.largest if chain.verdict in USES else chain.auc
    links = _decisive(chain)
    # The largest possible effect is the difference that the concept makes; of the return, which is a share, all of it.
    decisive, most = getattr(chain, links[0]), 1.0 if links[0] == "success" else abs(chain.gap)
    if chain.verdict == "acts" and links[0] != "success":  # the classes don't differ
        most = max(chain.shares)
    if chain.verdict == "jointly" and chain.joint:
        decisive, most = chain.joint.moved, abs(chain.joint.gap.mean)
    unit = 1.0 / max(most, 1e-9)
    strong = strength(decisive.change.scaled(unit), unit * decisive.random_most)
    concepts = concepts or [chain.concept]
    key: str = "acts_weakly" if (chain.verdict, strong) == ("acts", "weak") else chain.verdict
    if chain.verdict in HOLDS and (moved or chain.values):
        key = "elsewhere" if moved else "value_only"
    return WORDS.statement(key, weight, strong, chain=chain, site=site, links=links, concepts=concepts)


def _decisive(chain: CausalChain) -> list[str]:
    """Return the interventions that the verdict rests on, the one to show first: a return that changes says most.

    Of those that do the same, the one that stands out, and does most.
    """
    away, there = ["removed", "back"], ["moved"]
    either = away + there + (["differs"] if chain.differs is not None and chain.verdict == "acts" else [])
    asked = {"necessary": [away], "sufficient": [there], "both": [away, there]}.get(chain.verdict, [either])
    links = {name: getattr(chain, name) for name in either}
    most = [max(kind, key=lambda name: (links[name].stands_out, abs(links[name].change.mean))) for kind in asked]
    return (
        ["success"] if chain.success is not None and chain.success.change.beyond(chain.success.random_most) else []
    ) + most


def _draw(chains: Sequence[CausalChain]) -> bytes:
    rows = [
        EffectRow(
            f"{chain.concept}: {chain.behaviour}, {WORDS.text(name)}", link.change, link.random, chain.verdict in USES
        )
        for chain in chains
        for name, link in (("removed", chain.removed), ("back", chain.back), ("moved", chain.moved))
    ]
    return draw_effects(rows, WORDS.text("axis"))


def _check(chains: Sequence[CausalChain]) -> Check:
    blind = [chain for chain in chains if chain.without_power]
    return WORDS.check("power", not blind, 1.0 - len(blind) / len(chains), blind=blind)


def _table(chains: Sequence[CausalChain]) -> Table:
    rows = [
        [
            chain.concept, chain.behaviour, f"{chain.auc:.2f} ({chain.auc_random:.2f})",
            f"{chain.shares[0]:.0%}, {chain.shares[1]:.0%}", estimate(chain.removed.change), estimate(chain.back.change),
            estimate(chain.moved.change), f"{max(link.random_most for link in (chain.removed, chain.back, chain.moved)):.2f}",
            "" if chain.success is None else estimate(chain.success.change), f"{chain.gradient:.2f}", chain.verdict,
        ]
        for chain in chains
    ]  # fmt: skip
    return WORDS.table("chains", rows, ahead=AHEAD, random=len(chains[0].removed.random))


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording",), why_not=nothing_inside)
