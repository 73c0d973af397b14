"""What components do: change them in the environment and in the world model, beside random directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import NotANumberError
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.candidates import AHEAD as STEPS_ON
from rlhf_ray.interpret.agent.candidates import FITTED, Candidate, strongest, with_concepts
from rlhf_ray.interpret.agent.concepts import concepts_at
from rlhf_ray.interpret.agent.controls import Controlled
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.agent.effects import action_shares
from rlhf_ray.interpret.agent.erasure import Classes, Erasure
from rlhf_ray.interpret.agent.held import (
    FEWEST_LEVELS,
    LEVELS,
    Removed,
    distinct,
    held_concepts,
    intervened,
    levels_of,
    taken_away,
)  # fmt: skip
from rlhf_ray.interpret.agent.recall import Recall
from rlhf_ray.interpret.agent.rewriting import taken_in_the_loop
from rlhf_ray.interpret.agent.splits import recorded, split_episodes
from rlhf_ray.interpret.agent.steps.bases import fitted_basis
from rlhf_ray.interpret.agent.steps.story import Story
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.story import READ, Origin, origin
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, random_bases
from rlhf_ray.interpret.directions.directions import NOT_LINEAR
from rlhf_ray.interpret.directions.interventions import Intervention, Op
from rlhf_ray.interpret.directions.labels import usable
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.plots import EffectRow, draw_effects
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

OP: Op = "ablate_midpoint"
COMPONENTS, FITTED_EPISODES, FEWEST = 3, 400, 30
"""Components without labels; episodes that these are fitted to; fewest moments."""
COPIES = 120
LONGEST = 1000
"""Steps after which an episode is cut."""
MOMENTS, AHEAD = 60, 4
"""Moments from which world model and environment go on, and steps that they make: few, so that the model can be trusted."""
NEGLIGIBLE = 0.1
"""Share of the return that an interval has to stay within, and share of the actions that may differ, before a component counts as
not needed."""
MOVED = 0.02
"""Change of an action's frequency from which on its sign counts."""
AGREES = 0.5
"""Correlation of the changes in the world model and in the environment from which on the model is right about interventions."""
FREE = ("ica", "pca", "nmf", "sparse")
"""Kinds of bases without labels, in order of preference."""

Verdict = Literal["matters", "moves actions", "no more than random", "not settled", "decodable only", "no effect"]


@dataclass(frozen=True)
class ComponentEffect:
    """What taking a component away does.

    Attributes:
        candidate: the component.
        result: its effect beside that on random directions.
        held: of a concept: how it is read, what taking it away leaves, and what else it takes.
        recalled: see `rlhf_ray.interpret.agent.recall.recalled`; None without memory.
        taken: whether what it reads is away: the memory does not write it again.
    """

    candidate: Candidate
    result: Controlled
    held: Removed | None = None
    recalled: MeanEstimate | None = None
    taken: bool = True

    @property
    def origin(self) -> Origin:
        """Where it comes from."""
        return origin(self.recalled)

    @property
    def verdict(self) -> Verdict:
        """What follows from it."""
        if not self.taken:
            return "not settled"
        if self.result.changes:
            return "matters" if self.result.matched else "not settled"
        change, acts = self.result.effect.returns, self.result.effect.acts
        if not change.difference.holds_zero:
            return "no more than random"
        low, high = change.difference.low, change.difference.high
        if low is None or high is None or max(-low, high) > NEGLIGIBLE * max(abs(change.before), 1e-9):
            return "not settled"
        if acts.mean > NEGLIGIBLE:  # it does matter, to what the reward doesn't tell
            random = max((control.acts.mean for control in self.result.random), default=0.0)
            if acts.low is None or acts.low <= random:
                return "no more than random"
            return "moves actions" if self.result.matched else "not settled"
        if self.held is None:
            return "no effect"
        return "decodable only" if self.held.gone else "not settled"  # else another direction may serve it

    @property
    def random_returns(self) -> list[float]:
        """Change of the return with each random direction."""
        return [control.returns.difference.mean for control in self.result.random]

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        about = fields_of(self.candidate, "basis") | {"basis": self.candidate.basis.kind}
        held = {} if self.held is None else fields_of(self.held, "effect", "random", "file")
        return held | about | {"verdict": self.verdict, **self.result.to_json()}


@dataclass(frozen=True)
class Transfer:
    """Changes of action frequencies in the world model beside those in the environment, from the same moments.

    Attributes:
        moments: moments that both go on from.
        changes: by component, and by random direction: the changes in the environment and in the model.
        correlation: of both; None if one of them never changes.
        same_sign: share of the changes in the environment that have the same sign in the model; None if there are none.
    """

    moments: int
    changes: dict[str, tuple[list[float], list[float]]]
    correlation: float | None
    same_sign: float | None


@dataclass(frozen=True)
class Interventions:
    """What the step finds.

    Attributes:
        site: where the components are.
        episodes: levels that were played.
        distinct: how many distinct ones are among them.
        random: random directions beside each component.
        effects: of taking each component away.
        transfer: the same in the world model; None without one.
    """

    site: str
    episodes: int
    distinct: int
    random: int
    effects: list[ComponentEffect]
    transfer: Transfer | None


def run(context: AgentContext) -> Section:
    """Intervene on the most promising components, and on the concepts that are read off the agent."""
    subject, site = context.subject, site_of(context.subject.agent)
    fitted, test = split_episodes(context, "train", FITTED_EPISODES), recorded(context, "test")
    values, rng = _values(context, fitted, site), context.rng(WORDS.name)
    some = values[np.sort(rng.permutation(len(values))[:FITTED])]
    free = fitted_basis(context, FREE, values.shape[1]) or directions.fit("ica", some, 16, subject.seed)
    played = levels_of(context)
    removed = _concepts(context, played)
    candidates = strongest(subject.agent, test, site, free, COMPONENTS, rng)
    known = {name: concept[test.real] for name, concept in concepts_at(test).items()}
    candidates = with_concepts(candidates, _values(context, test, site), known, READ)
    candidates, stays = _in_the_loop(context, candidates, fitted, values)
    candidates += [
        Candidate(basis, tuple(range(len(basis))), WORDS.text("concept", name=name), one.sensitivity, name, one.auc)
        for name, (basis, one) in removed.items()
    ]
    if not candidates:
        return WORDS.skipped("nothing_varies")
    effects, recall = [], Recall.of(context)
    for number, candidate in enumerate(candidates):
        context.say(f"intervening on {candidate.name} ({number + 1} of {len(candidates)})")
        candidate.basis.save(context.out / f"candidate_{number}.npz")
        if candidate.concept:  # the story's figures
            held = removed[candidate.concept][1]
            effects.append(ComponentEffect(candidate, held.result, held, held.recalled, held.taken))
            continue
        try:
            result = intervened(context, candidate.basis, candidate.components, OP, values, played)
        except NotANumberError:  # it, or a random direction, drives the memory beyond all numbers
            context.say(f"left out: without {candidate.name} the memory grows without end")
        else:
            come = recall.of_components(candidate.basis, candidate.components)
            effects.append(ComponentEffect(candidate, result, recalled=come, taken=candidate.name not in stays))
    if not effects:
        return WORDS.skipped("grows")
    transfer = _transfer(context, test, candidates, values, site)
    figures = Interventions(site, len(played[0]), len(np.unique(played[2])), COUNT, effects, transfer)
    checks = [_same_play(context, played[1], candidates[0], site), *_transfer_check(figures.transfer)]
    box = isinstance(subject.agent.action_space, gym.spaces.Box)
    statements = _statements(effects, subject.site_name, box)
    return WORDS.section(statements, checks, [_table(figures)], [WORDS.picture("effects", _draw(effects))], figures)


def _concepts(
    context: AgentContext, played: tuple[IntArray, Episodes, IntArray]
) -> dict[str, tuple[Directions, Removed]]:
    """Return the directions of concepts, and what taking them away does: by the step "story"; without it, measure the same."""
    story = context.figures("story", Story)
    if story is not None:
        folder = context.folders["story"]
        return {name: (directions.load(folder / one.file), one) for name, one in story.removed.items()}
    values, held = held_concepts(context)
    removed = taken_away(context, held, values, played)
    return {name: (held[name].erasure.basis, one) for name, one in removed.items()}


def _in_the_loop(
    context: AgentContext, candidates: Sequence[Candidate], fitted: Episodes, values: FloatArray
) -> tuple[list[Candidate], set[str]]:
    """Add directions to components whose concept the memory would write again; also return names of those where it still does."""
    subject, known = context.subject, {name: each[fitted.real] for name, each in concepts_at(fitted).items()}
    classes = {name: Classes.fit(each) for name, each in known.items() if usable(each)}
    names, found, stays = list(distinct({name: classes[name](known[name]) for name in classes})), [], set()
    levels = np.unique(recorded(context, "train").levels)[: subject.count(LEVELS, FEWEST_LEVELS)]
    for one in candidates:
        if one.reads in classes and not one.mixed and one.basis.kind not in NOT_LINEAR:
            basis = one.basis.part(one.components)
            others = [name for name in names if name != one.reads]
            erasure = Erasure(basis, 0.0, 0.0, 0.0, 0.0, 0.0, [], others)
            erasure = taken_in_the_loop(subject, erasure, one.reads, classes, values, levels)
            if len(erasure.basis) > len(basis):
                one = replace(one, basis=erasure.basis, components=tuple(range(len(erasure.basis))))
            if not erasure.taken:
                stays.add(one.name)
        found.append(one)
    return found, stays


def _values(context: AgentContext, episodes: Episodes, site: str) -> FloatArray:
    values: FloatArray = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
    return values


def _same_play(context: AgentContext, plain: Episodes, candidate: Candidate, site: str) -> Check:
    """An intervention that changes nothing must leave the logits bit-equal."""
    levels = plain.levels[: min(COPIES, len(plain))]
    identity = Intervention(candidate.basis, candidate.components, "scale", amount=1.0, site=site)
    before, after = (
        context.subject.play(levels, max_steps=LONGEST, frames=False, hooks=hooks) for hooks in ((), (identity,))
    )
    same = np.array_equal(before.logits, after.logits)
    return WORDS.check("identity", same, float(same))


def _transfer(
    context: AgentContext, test: Episodes, candidates: Sequence[Candidate], values: FloatArray, site: str
) -> Transfer | None:
    """Compare what interventions change in the world model with what they change in the environment, from the same moments."""
    subject, world = context.subject, world_of(context)
    if world is None or not len(test.env_states):
        return None
    count = subject.count(MOMENTS, FEWEST)
    moments = draw_moments(subject.agent, test, count, context.rng("transfer"), context=world.context)
    context.say("interventions inside the world model")
    snapshots = snapshots_of(test, moments.rows, moments.steps)

    def shares(*hooks: Intervention) -> FloatArray:
        """Return the action frequencies in the environment and in the model, ``[2, actions]``."""
        real, _ = go_on(
            subject.agent, subject.make_batch, snapshots, interventions=hooks, steps=AHEAD, mapper=context.mapper
        )
        simulated = play_in_world(world, subject.agent, moments, AHEAD, hooks)
        return np.stack([action_shares(played, subject.agent.action_space).mean(0) for played in (real, simulated)])

    plain, changes = shares(), {}
    for candidate in candidates:
        drawn = random_bases(candidate.basis, candidate.components, values, seed=subject.seed)
        conditions: dict[str, tuple[Directions, Sequence[int]]] = {
            candidate.name: (candidate.basis, candidate.components)
        }
        conditions |= {
            f"{candidate.name}, random {number}": (basis, range(len(basis))) for number, basis in enumerate(drawn)
        }
        for name, (basis, components) in conditions.items():
            after = shares(Intervention(basis, components, "ablate_midpoint", site=site))
            changes[name] = np.round(after - plain, 4)
    real, model = (np.stack([change[side] for change in changes.values()]) for side in (0, 1))
    correlation = pearson(real, model) if real.std() > 1e-9 and model.std() > 1e-9 else None
    moved = np.abs(real) > MOVED
    same_sign = float((np.sign(real) == np.sign(model))[moved].mean()) if moved.any() else None
    pairs = {name: (change[0].tolist(), change[1].tolist()) for name, change in changes.items()}
    return Transfer(len(moments), pairs, correlation, same_sign)


def _transfer_check(transfer: Transfer | None) -> Iterator[Check]:
    if transfer is not None:
        value = transfer.correlation
        passed = None if value is None else value >= AGREES
        yield WORDS.check("transfer", passed, value, least=AGREES, steps=AHEAD)


def _statements(effects: Sequence[ComponentEffect], site: str, box: bool) -> Iterator[Statement]:
    unused = {one.candidate.concept for one in effects if one.verdict == "decodable only"}
    matter = {one.candidate.concept for one in effects if one.verdict in ("matters", "moves actions")}
    for one in effects:
        if one.held is not None and one.held.follows and matter.issuperset([one.candidate.concept, *one.held.follows]):
            continue  # it is told under those
        change, acts, candidate = one.result.effect.returns, one.result.effect.acts, one.candidate
        reads = "" if candidate.reads in unused else candidate.reads  # what it does is not that concept's
        values: dict[str, Any] = {"name": candidate.name, "reads": reads, "site": site, "box": box, "one": one}
        if one.verdict == "matters":
            unit = 1.0 / max(abs(change.before), 1e-9)
            strong = strength(change.difference.scaled(unit), unit * max(map(abs, one.random_returns), default=0.0))
            key = "needs" if change.difference.mean < 0 else "costs"
            yield WORDS.statement(key, abs(change.difference.mean), strong, **values)
        elif one.verdict == "moves actions":
            random = max((control.acts.mean for control in one.result.random), default=0.0)
            yield WORDS.statement("moves", acts.mean, strength(acts, random), **values)
        elif one.verdict == "decodable only":
            yield WORDS.statement("not_needed", one.candidate.auc or 0.0, **values)
        elif one.result.changes and one.taken:
            yield WORDS.statement("unmatched", abs(change.difference.mean), **values)
        elif candidate.concept:
            yield WORDS.statement("unsettled", abs(change.difference.mean), **values)


def _table(figures: Interventions) -> Table:
    rows, effects = [], figures.effects
    for one in effects:
        effect, candidate = one.result.effect, one.candidate
        cause, share = effect.largest_outcome
        rows.append(
            [
                candidate.name, "" if candidate.auc is None else f"{candidate.auc:.2f}",
                f"{candidate.sensitivity:.2f}", f"{effect.returns.before:.2f} to {effect.returns.after:.2f}",
                estimate(effect.returns.difference),
                f"{max(map(abs, one.random_returns)):.2f}" if one.random_returns else "–",
                f"{cause} {share.before:.0%} to {share.after:.0%}", f"{effect.acts.mean:.2f}", one.verdict,
            ]
        )  # fmt: skip
    random = sorted({len(one.result.random) for one in effects})
    return WORDS.table(
        "effects",
        rows,
        episodes=figures.episodes,
        distinct=figures.distinct,
        random=random,
        steps_on=STEPS_ON,
        decoded=READ,
    )


def _draw(effects: Sequence[ComponentEffect]) -> bytes:
    rows = [
        EffectRow(
            one.candidate.name,
            one.result.effect.returns.difference,
            one.random_returns,
            one.verdict == "matters",
        )
        for one in effects
    ]
    return draw_effects(rows, WORDS.text("axis"))


STEP = Step(WORDS.name, WORDS.title, run, ("recording", "world_model", "bases", "concepts", "story"), nothing_inside)
