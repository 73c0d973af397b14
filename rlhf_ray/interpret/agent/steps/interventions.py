"""What components do: change them in the environment and in the world model, beside random directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import NotANumberError
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.candidates import AHEAD as STEPS_ON
from rlhf_ray.interpret.agent.candidates import FITTED, Candidate, auc, concept_directions, ranked
from rlhf_ray.interpret.agent.concepts import concepts_at
from rlhf_ray.interpret.agent.controls import Controlled, controlled
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.agent.effects import action_shares
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.steps.bases import fitted_basis
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, random_bases
from rlhf_ray.interpret.directions.interventions import Intervention, Op
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.plots import EffectRow, draw_effects
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

OPS: tuple[Op, ...] = ("ablate_midpoint", "reflect")
COMPONENTS, CONCEPTS = 3, 4
FITTED_EPISODES, EPISODES, FEWEST = 400, 120, 30
"""Episodes that directions are fitted to; episodes that are played again."""
COPIES = 120
LONGEST = 1000
"""Steps after which an episode is cut."""
MOMENTS, AHEAD = 60, 4
"""Moments from which world model and environment go on, and steps that they make: few, so that the model can be trusted."""
DECODED = 0.8
"""AUC from which on a concept counts as decodable."""
NEGLIGIBLE = 0.1
"""Share of the return that an interval has to stay within, and share of the actions that may differ, before a component counts as
not needed."""
SAME_DIRECTION = 0.9
"""Cosine of two concepts' directions from which on an effect may be either's."""
MOVED = 0.02
"""Change of an action's frequency from which on its sign counts."""
AGREES = 0.5
"""Correlation of the changes in the world model and in the environment from which on the model is right about interventions."""
FREE = ("ica", "pca", "nmf", "sparse")
"""Kinds of bases without labels, in order of preference."""

Verdict = Literal["matters", "moves actions", "no more than random", "not settled", "decodable only", "no effect"]


@dataclass(frozen=True)
class ComponentEffect:
    """What one operation on one component does.

    Attributes:
        candidate: the component.
        op: the operation.
        result: its effect beside that on random directions.
        same_direction: other tested concepts whose direction is nearly the same.
    """

    candidate: Candidate
    op: Op
    result: Controlled
    same_direction: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What follows from it."""
        if self.result.changes:
            return "matters"
        change, acts = self.result.effect.returns, self.result.effect.acts
        if not change.difference.holds_zero:
            return "no more than random"
        low, high = change.difference.low, change.difference.high
        if low is None or high is None or max(-low, high) > NEGLIGIBLE * max(abs(change.before), 1e-9):
            return "not settled"
        if acts.mean > NEGLIGIBLE:  # it does matter, to what the reward doesn't tell
            random = max((control.acts.mean for control in self.result.random), default=0.0)
            return "moves actions" if acts.low is not None and acts.low > random else "no more than random"
        return "decodable only" if (self.candidate.auc or 0.0) >= DECODED else "no effect"

    @property
    def random_returns(self) -> list[float]:
        """Change of the return with each random direction."""
        return [control.returns.difference.mean for control in self.result.random]

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        about = fields_of(self.candidate, "basis") | {"basis": self.candidate.basis.kind}
        return about | {"op": self.op, "verdict": self.verdict, **self.result.to_json()}


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
        random: random directions beside each component.
        effects: of each operation on each component.
        transfer: the same in the world model; None without one.
    """

    site: str
    episodes: int
    random: int
    effects: list[ComponentEffect]
    transfer: Transfer | None


def run(context: AgentContext) -> Section:
    """Intervene on the most promising components and concepts."""
    subject, site = context.subject, site_of(context.subject.agent)
    fitted = split_episodes(context, "train", FITTED_EPISODES)
    test = split_episodes(context, "test", subject.count(EPISODES, FEWEST))
    values = _values(context, fitted, site)
    candidates = _candidates(context, fitted, test, values, site)
    if not candidates:
        return WORDS.skipped("nothing_varies")
    levels = test.levels[: subject.count(EPISODES, FEWEST)]
    plain, groups = subject.play(levels, max_steps=LONGEST, frames=False), subject.groups(levels)
    effects = []
    for number, candidate in enumerate(candidates):
        context.say(f"intervening on {candidate.name} ({number + 1} of {len(candidates)})")
        candidate.basis.save(context.out / f"candidate_{number}.npz")
        for op in OPS:
            try:
                result = controlled(
                    subject.agent, subject.make_batch, levels, partial(_intervention, op, site), candidate.basis,
                    [candidate.component], values, plain=plain, groups=groups, copies=COPIES, seed=subject.seed,
                    mapper=context.mapper,
                )  # fmt: skip
            except NotANumberError:  # it, or a random direction, drives the memory beyond all numbers
                context.say(f"left out: {op} of {candidate.name} makes the memory grow without end")
            else:
                effects.append(ComponentEffect(candidate, op, result, _same_direction(candidate, candidates)))
    if not effects:
        return WORDS.skipped("grows")
    figures = Interventions(site, len(levels), COUNT, effects, _transfer(context, test, candidates, values, site))
    checks = [_same_play(context, plain, candidates[0], site), *_transfer_check(figures.transfer)]
    box = isinstance(subject.agent.action_space, gym.spaces.Box)
    statements = _statements(effects, subject.site_name, box)
    return WORDS.section(statements, checks, [_table(effects)], [WORDS.picture("effects", _draw(effects))], figures)


def _intervention(op: Op, site: str, basis: Directions, components: Sequence[int]) -> Intervention:
    return Intervention(basis, components, op, site=site)


def _values(context: AgentContext, episodes: Episodes, site: str) -> FloatArray:
    values: FloatArray = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
    return values


def _candidates(
    context: AgentContext, fitted: Episodes, test: Episodes, values: FloatArray, site: str
) -> list[Candidate]:
    """Choose components of the step "bases" (or an ICA), and directions of what the environment says about itself."""
    rng, seed = context.rng(WORDS.name), context.subject.seed
    chosen = np.sort(rng.permutation(len(values))[:FITTED])
    free = fitted_basis(context, FREE, values.shape[1]) or directions.fit("ica", values[chosen], 16, seed)
    labels = {name: concept[fitted.real][chosen] for name, concept in concepts_at(fitted).items()}
    other, known = _values(context, test, site), concepts_at(test)
    of_concepts = {
        name: (basis, auc(basis, 0, other, known[name][test.real]))
        for name, basis in concept_directions(values[chosen], labels, seed).items()
        if name in known
    }
    return ranked(context.subject.agent, test, site, free, of_concepts, (COMPONENTS, CONCEPTS), rng)


def _same_direction(candidate: Candidate, others: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the other concepts whose direction is nearly the same: an effect may be theirs."""

    def unit(basis: Directions, component: int) -> FloatArray:
        pattern = np.asarray(basis.patterns, np.float64)[component]
        scaled: FloatArray = pattern / max(float(np.linalg.norm(pattern)), 1e-12)
        return scaled

    mine = unit(candidate.basis, candidate.component)
    concepts = [other for other in others if candidate.concept and other.concept and other is not candidate]
    cosines = {other.concept: abs(float(unit(other.basis, other.component) @ mine)) for other in concepts}
    return tuple(name for name, cosine in cosines.items() if cosine >= SAME_DIRECTION)


def _same_play(context: AgentContext, plain: Episodes, candidate: Candidate, site: str) -> Check:
    """An intervention that changes nothing must leave the logits bit-equal."""
    levels = plain.levels[: min(COPIES, len(plain))]
    identity = Intervention(candidate.basis, [candidate.component], "scale", amount=1.0, site=site)
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
        drawn = random_bases(candidate.basis, [candidate.component], values, seed=subject.seed)
        conditions = {candidate.name: (candidate.basis, candidate.component)}
        conditions |= {f"{candidate.name}, random {number}": (basis, 0) for number, basis in enumerate(drawn)}
        for name, (basis, component) in conditions.items():
            after = shares(_intervention("ablate_midpoint", site, basis, [component]))
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
    for name in dict.fromkeys(effect.candidate.name for effect in effects):
        same = [effect for effect in effects if effect.candidate.name == name]
        strongest = max(
            same, key=lambda effect: (effect.result.changes, abs(effect.result.effect.returns.difference.mean))
        )
        moving = [effect for effect in same if effect.verdict == "moves actions"]
        values: dict[str, Any] = {"name": name, "site": site, "box": box}
        if strongest.result.changes:
            change = strongest.result.effect.returns
            unit = 1.0 / max(abs(change.before), 1e-9)
            random = unit * max(map(abs, strongest.random_returns), default=0.0)
            strong, key = (
                strength(change.difference.scaled(unit), random),
                "needs" if change.difference.mean < 0 else "costs",
            )
            yield WORDS.statement(key, abs(change.difference.mean), strong, one=strongest, **values)
        elif moving:
            most = max(moving, key=lambda effect: effect.result.effect.acts.mean)
            random = max((control.acts.mean for control in most.result.random), default=0.0)
            acts = most.result.effect.acts
            yield WORDS.statement("moves", acts.mean, strength(acts, random), one=most, **values)
        elif all(effect.verdict == "decodable only" for effect in same):
            yield WORDS.statement("not_needed", strongest.candidate.auc or 0.0, one=strongest, **values)


def _table(effects: Sequence[ComponentEffect]) -> Table:
    rows = []
    for one in effects:
        effect, candidate = one.result.effect, one.candidate
        cause, share = effect.largest_outcome
        rows.append(
            [
                candidate.name, WORDS.text(one.op), "" if candidate.auc is None else f"{candidate.auc:.2f}",
                f"{candidate.sensitivity:.2f}", f"{effect.returns.before:.2f} to {effect.returns.after:.2f}",
                estimate(effect.returns.difference),
                f"{max(map(abs, one.random_returns)):.2f}" if one.random_returns else "–",
                f"{cause} {share.before:.0%} to {share.after:.0%}", f"{effect.acts.mean:.2f}", one.verdict,
            ]
        )  # fmt: skip
    random = sorted({len(one.result.random) for one in effects})
    episodes = effects[0].result.effect.episodes
    return WORDS.table("effects", rows, episodes=episodes, random=random, steps_on=STEPS_ON, decoded=DECODED)


def _draw(effects: Sequence[ComponentEffect]) -> bytes:
    rows = [
        EffectRow(
            f"{one.candidate.name}, {WORDS.text(one.op)}",
            one.result.effect.returns.difference,
            one.random_returns,
            one.verdict == "matters",
        )
        for one in effects
    ]
    return draw_effects(rows, WORDS.text("axis"))


STEP = Step(WORDS.name, WORDS.title, run, ("recording", "world_model", "bases", "concepts"), nothing_inside)
