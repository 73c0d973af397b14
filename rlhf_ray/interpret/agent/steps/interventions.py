"""Step: what components do: change them in the environment and in the world model, beside random directions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import NotANumberError, play
from rlhf_ray.agents.recorded import Split
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.at_hand import nothing_inside, site_name
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.candidates import AHEAD as STEPS_ON
from rlhf_ray.interpret.agent.candidates import FITTED, Candidate, auc, concept_directions, concepts_at, ranked
from rlhf_ray.interpret.agent.controls import COUNT, Controlled, controlled, instead, random_bases
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.agent.effects import CausalEffect, action_shares
from rlhf_ray.interpret.agent.interventions import Intervention, Op
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "interventions"
TITLE = "What the components do"

OPS: tuple[Op, ...] = ("ablate_midpoint", "reflect")
DOES = {"ablate_midpoint": "set to its midpoint", "reflect": "mirrored about its midpoint"}
"""Operations in words."""
COMPONENTS, CONCEPTS = 3, 4
EPISODES, FEWEST = 120, 30
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
FREE = ("ica", "pca", "nmf", "sparse")
"""Kinds of bases without labels, in order of preference."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to change; None otherwise."""
    return nothing_inside(context)


@dataclass(frozen=True)
class _Result:
    """What one operation on one candidate did."""

    candidate: Candidate
    op: Op
    found: Controlled

    @property
    def verdict(self) -> str:
        """Return what follows from it, in a word or two."""
        if self.found.changes:
            return "matters"
        change = self.found.effect.returns
        if not change.difference.holds_zero:
            return "no more than random"
        scale = NEGLIGIBLE * max(abs(change.before), 1e-9)
        if change.difference.low is None or change.difference.high is None:
            return "not settled"
        if max(-change.difference.low, change.difference.high) > scale:
            return "not settled"
        if self.found.effect.acts.mean > NEGLIGIBLE:  # it does matter, to what the reward doesn't tell
            return "moves actions" if self._acts_beyond_chance() else "no more than random"
        return "decodable only" if (self.candidate.auc or 0.0) >= DECODED else "no effect"

    def _acts_beyond_chance(self) -> bool:
        """Return whether the interval of how often it acts otherwise lies above every random direction's mean."""
        low = self.found.effect.acts.low
        return low is not None and low > max((each.acts.mean for each in self.found.random), default=0.0)


def run(context: AgentContext) -> Section:
    """Intervene on the most promising components and concepts."""
    agent, site = context.subject.agent, site_of(context.subject.agent)
    train, test = _split(context, "train"), _split(context, "test")
    values = _rows(context, train, site)
    candidates = _candidates(context, train, test, values, site)
    if not candidates:
        return Section(NAME, TITLE, skipped="What the agent has in mind never varies, so there is nothing to change.")
    levels = test.levels[: max(FEWEST, round(EPISODES * context.subject.effort))]
    batch = context.subject.make_batch(min(COPIES, len(levels)))
    names = list(batch.action_names)
    plain = play(agent, batch, levels, max_steps=LONGEST, frames=False)
    batch.close()
    results = []
    for at, candidate in enumerate(candidates):
        context.say(f"intervening on {candidate.name} ({at + 1} of {len(candidates)})")
        for op in OPS:
            try:
                found = controlled(
                    agent, context.subject.make_batch, levels, partial(_make, op, site), candidate.basis, [candidate.component],
                    values, plain=plain, copies=COPIES, seed=context.subject.seed, mapper=context.mapper,
                )  # fmt: skip
            except NotANumberError:  # it, or a random direction, drives the memory beyond all numbers
                context.say(f"left out: {candidate.name} {DOES[op]} makes the memory grow without end")
                continue
            results.append(_Result(candidate, op, found))
    if not results:
        return Section(NAME, TITLE, skipped="Each intervention makes the memory grow without end.")
    transfer = _transfer(context, test, candidates, values, site, names)
    figures = {
        "site": site,
        "episodes": len(levels),
        "random": COUNT,
        "effects": [
            {
                "component": each.candidate.name,
                "basis": each.candidate.basis.kind,
                "number": each.candidate.component,
                "concept": each.candidate.concept,
                "auc": each.candidate.auc,
                "sensitivity": each.candidate.sensitivity,
                "op": each.op,
                "verdict": each.verdict,
                **each.found.to_json(),
            }
            for each in results
        ],
        "transfer": transfer,
    }
    write_text(context.out / "effects.json", json.dumps(figures, indent=1) + "\n")
    for at, candidate in enumerate(candidates):
        candidate.basis.save(context.out / f"candidate_{at}.npz")
    checks = [_same_play(context, plain, candidates[0], site), *_transfer_check(transfer)]
    picture = Picture(
        "effects",
        _draw(results),
        "Change of the true return, with its interval. Blue: it matters; orange: it does not, or random directions do as much. "
        "Grey: random directions.",
    )
    statements = _statements(results, site_name(agent), isinstance(agent.action_space, gym.spaces.Box))
    return Section(NAME, TITLE, statements, checks, [_table(results)], [picture], figures)


def _make(op: Op, site: str, basis: Basis, components: Sequence[int]) -> Intervention:
    return Intervention(basis, components, op, site=site)


def _split(context: AgentContext, split: Split) -> Episodes:
    """Load episodes of a split: more to fit on than to play again."""
    most = 400 if split == "train" else max(FEWEST, round(EPISODES * context.subject.effort))
    return split_episodes(context, split, most)


def _rows(context: AgentContext, episodes: Episodes, site: str) -> FloatArray:
    found: FloatArray = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
    return found


def _candidates(
    context: AgentContext, train: Episodes, test: Episodes, values: FloatArray, site: str
) -> list[Candidate]:
    """Choose components of the step "bases" (or an ICA), and directions of what the environment says about itself."""
    rng = context.rng(NAME)
    chosen = np.sort(rng.permutation(len(values))[:FITTED])
    loaded = _free_bases(context, values.shape[1]) or [bases.fit("ica", values[chosen], 16, context.subject.seed)]
    labels = {name: of[train.real][chosen] for name, of in concepts_at(train).items()}
    other, known = _rows(context, test, site), concepts_at(test)
    directions = {}
    for name, basis in concept_directions(values[chosen], labels, context.subject.seed).items():
        if name in known:
            directions[name] = basis, auc(basis, 0, other, known[name][test.real])
    return ranked(context.subject.agent, test, site, loaded, directions, (COMPONENTS, CONCEPTS), rng)


def _free_bases(context: AgentContext, size: int) -> list[Basis]:
    folder = context.folders.get("bases")
    found = []
    for file in sorted(folder.glob("*.npz")) if folder is not None else ():
        try:
            found.append(bases.load(file))
        except SettingError:
            continue
    fitting = [basis for basis in found if basis.kind in FREE and len(basis.center) == size and len(basis)]
    return sorted(fitting, key=lambda basis: FREE.index(basis.kind))[:1]


def _same_play(context: AgentContext, plain: Episodes, candidate: Candidate, site: str) -> Check:
    """An intervention that changes nothing must leave the logits bit-equal."""
    levels = plain.levels[: min(COPIES, len(plain))]
    batch = context.subject.make_batch(len(levels))
    before = play(context.subject.agent, batch, levels, max_steps=LONGEST, frames=False)
    identity = Intervention(candidate.basis, [candidate.component], "scale", amount=1.0, site=site)
    after = play(context.subject.agent, batch, levels, max_steps=LONGEST, frames=False, hooks=[identity])
    batch.close()
    same = before.logits.shape == after.logits.shape and bool((before.logits == after.logits).all())
    says = "" if same else "An intervention that changes nothing changes what the agent does: don't trust the others."
    return Check("an identity leaves logits bit-equal", same, float(same), "bit-equal", says)


def _transfer(
    context: AgentContext,
    test: Episodes,
    candidates: Sequence[Candidate],
    values: FloatArray,
    site: str,
    names: Sequence[str],
) -> dict[str, Any]:
    """Compare what interventions change in the world model with what they change in the environment, from the same moments."""
    folder = context.folders.get("world_model")
    if folder is None or not len(test.env_states):
        return {}
    from rlhf_ray.interpret.agent.world_model.model import load_world

    world: World = load_world(folder, agent=context.subject.agent)
    count = max(FEWEST, round(MOMENTS * context.subject.effort))
    moments = draw_moments(context.subject.agent, test, count, context.rng("transfer"), context=world.context)
    context.say("interventions inside the world model")
    snapshots = snapshots_of(test, moments.rows, moments.steps)

    def both(interventions: Sequence[Intervention]) -> tuple[FloatArray, FloatArray]:
        real, _ = go_on(
            context.subject.agent,
            context.subject.make_batch,
            snapshots,
            interventions=interventions,
            steps=AHEAD,
            mapper=context.mapper,
        )
        return _shares(context, real), _shares(
            context, play_in_world(world, context.subject.agent, moments, AHEAD, interventions)
        )

    plain = both(())
    found = []
    for candidate in candidates:
        drawn = random_bases(candidate.basis, [candidate.component], values, seed=context.subject.seed)
        conditions = [(candidate.basis, candidate.component), *((basis, 0) for basis in drawn)]
        for at, (basis, component) in enumerate(conditions):
            after = both([_make("ablate_midpoint", site, basis, [component])])
            changes = [np.round(one - before, 4).tolist() for one, before in zip(after, plain, strict=True)]
            name = candidate.name if at == 0 else f"random {at}"
            found.append({"component": name, "real": changes[0], "model": changes[1]})
    real, model = (np.array([each[key] for each in found]) for key in ("real", "model"))
    moved = np.abs(real).max(1) > 0.02
    varied = real.std() > 1e-9 and model.std() > 1e-9
    return {
        "steps": AHEAD,
        "moments": len(moments),
        "actions": list(names),
        "changes": found,
        "correlation": pearson(real, model) if varied else None,
        "same_sign": float((np.sign(real) == np.sign(model))[np.abs(real) > 0.02].mean()) if moved.any() else None,
    }


def _shares(context: AgentContext, episodes: Episodes) -> FloatArray:
    shares: FloatArray = action_shares(episodes, context.subject.agent.action_space).mean(0)
    return shares


def _transfer_check(transfer: dict[str, Any]) -> list[Check]:
    if not transfer:
        return []
    value = transfer["correlation"]
    passed = None if value is None else value >= 0.5
    says = {
        None: "No intervention changed how often actions are taken, so nothing can be compared.",
        False: "Interventions change other actions in the world model than in the environment: don't trust the model's.",
        True: "",
    }[passed]
    bound = f"correlation >= 0.5 of changed action frequencies over {transfer['steps']} steps"
    return [Check("interventions do the same in the world model and in reality", passed, value, bound, says)]


def _statements(results: Sequence[_Result], site: str, box: bool) -> list[Statement]:
    found = []
    for candidate in dict.fromkeys(each.candidate.name for each in results):
        own = [each for each in results if each.candidate.name == candidate]
        strongest = max(own, key=lambda each: (each.found.changes, abs(each.found.effect.returns.difference.mean)))
        change, what = strongest.found.effect.returns, strongest.candidate.name
        first = what[0].upper() + what[1:]
        if strongest.found.changes:
            worse = change.difference.mean < 0
            claim = (
                f"The agent needs {what} in its {site}" if worse else f"{first} in the {site} costs the agent return"
            )
            text = (
                f"{claim}: with it {DOES[strongest.op]}, the true return changes from {change.before:.2f} to {change.after:.2f} "
                f"({change.difference.text()}). {_beside(strongest)}{_cause(strongest)}{_also(strongest.candidate, results)}"
            )
            found.append(Statement("uses", text, abs(change.difference.mean)))
        elif moved := [each for each in own if each.verdict == "moves actions"]:
            most = max(moved, key=lambda each: each.found.effect.acts.mean)
            text = (
                f"{first} in the {site} drives what the agent does, but not its true return: with it {DOES[most.op]}, "
                f"{_acts(most.found.effect, box)}. {instead([each.acts.mean for each in most.found.random])}"
            )
            found.append(Statement("uses", text, most.found.effect.acts.mean))
        elif all(each.verdict == "decodable only" for each in own):
            text = (
                f"{first} can be read off the {site} (AUC {strongest.candidate.auc:.2f}) but is not needed, as far as was tested: "
                f"with it {DOES[strongest.op]}, the true return changes by {change.difference.text()}. {_beside(strongest)}"
            )
            found.append(Statement("holds", text, strongest.candidate.auc or 0.0))
    return found


def _beside(result: _Result) -> str:
    return instead([each.returns.difference.mean for each in result.found.random])


def _also(candidate: Candidate, results: Sequence[_Result]) -> str:
    """Name the other concepts whose direction is nearly the same."""

    def unit(of: Candidate) -> FloatArray:
        pattern = np.asarray(of.basis.patterns, np.float64)[of.component]
        found: FloatArray = pattern / max(float(np.linalg.norm(pattern)), 1e-12)
        return found

    others = {each.candidate.concept: each.candidate for each in results if each.candidate.name != candidate.name}
    alike = [
        name for name, other in others.items() if name and abs(float(unit(other) @ unit(candidate))) >= SAME_DIRECTION
    ]
    if not candidate.concept or not alike:
        return ""
    return f" It is nearly the direction of {' and of '.join(alike)}, too: which of them matters can't be told."


def _cause(result: _Result) -> str:
    grown = {name: change.difference for name, change in result.found.effect.outcomes.items()}
    name, most = max(grown.items(), key=lambda item: item[1].mean)
    before = result.found.effect.outcomes[name].before
    return (
        f" Episodes that end by {name}: {before:.0%} before, {before + most.mean:.0%} after." if most.mean > 0 else ""
    )


def _acts(effect: CausalEffect, box: bool) -> str:
    if box:
        return f"its actions move by {effect.acts.text()} standard deviations"
    return f"its actions differ in a share of {effect.acts.text()} of the steps"


def _random_most(result: _Result) -> float:
    return max((abs(each.returns.difference.mean) for each in result.found.random), default=0.0)


def _table(results: Sequence[_Result]) -> Table:
    rows = []
    for each in results:
        effect = each.found.effect
        cause = max(effect.outcomes.items(), key=lambda item: abs(item[1].difference.mean))
        action = max(effect.actions.items(), key=lambda item: abs(item[1].difference.mean))
        rows.append(
            [
                each.candidate.name,
                DOES[each.op],
                "" if each.candidate.auc is None else f"{each.candidate.auc:.2f}",
                f"{each.candidate.sensitivity:.2f}",
                f"{effect.returns.before:.2f} to {effect.returns.after:.2f}",
                effect.returns.difference.text(),
                f"{_random_most(each):.2f}" if each.found.random else "–",
                f"{cause[0]} {cause[1].before:.0%} to {cause[1].after:.0%}",
                f"{action[0]} {action[1].before:.2f} to {action[1].after:.2f}",
                f"{effect.acts.mean:.2f}",
                each.verdict,
            ]
        )
    heads = [
        "component", "operation", "AUC", "first order", "true return", "change (95 % interval)", "random, most",
        "outcome that changes most", "action that changes most", "acts otherwise", "verdict",
    ]  # fmt: skip
    caption = (
        f"Interventions at every step in the environment, on {results[0].found.effect.episodes} held-out levels, each against the "
        f"same levels without. Random, most: the largest change by {_counts(results)} random directions orthogonal to the "
        "component, of equal variance where there are any, else of less. First order: change of "
        f"the log-odds of the action (Box: of the means), now or up to {STEPS_ON} steps on, by one standard deviation. "
        "Acts otherwise: share of the steps with another action (Box: mean distance in standard deviations). Verdict, matters: the "
        "return changes, by more than with any random direction; moves actions: only they do; no more than random: random "
        f"directions do as much; decodable only: no effect, and an AUC of {DECODED} or more; not settled: the interval is too wide."
    )
    return Table(heads, rows, caption)


def _counts(results: Sequence[_Result]) -> str:
    """Return how many random directions stand beside each component."""
    counts = sorted({len(each.found.random) for each in results})
    return "no" if counts == [0] else " or ".join(map(str, counts))


def _draw(results: Sequence[_Result]) -> bytes:
    figure = Figure((7.0, 0.6 + 0.32 * len(results)), layout="constrained")
    axes = figure.subplots()
    for at, each in enumerate(reversed(results)):
        change = each.found.effect.returns.difference
        random = [of.returns.difference.mean for of in each.found.random]
        axes.plot(random, [at] * len(random), "|", color="0.6", markersize=9, markeredgewidth=1.5)
        error = (
            None
            if change.low is None or change.high is None
            else [[change.mean - change.low], [change.high - change.mean]]
        )
        colour = "#0072b2" if each.verdict == "matters" else "#e69f00"
        axes.errorbar(change.mean, at, xerr=error, fmt="o", color=colour, capsize=3)
    axes.axvline(0.0, color="0.3", linewidth=0.8)
    labels = [f"{each.candidate.name}, {DOES[each.op]}" for each in reversed(results)]
    axes.set_yticks(range(len(results)), labels, fontsize=8)
    axes.set_xlabel("change of the true return")
    return png(figure)


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model", "bases", "concepts"), why_not=why_not)
