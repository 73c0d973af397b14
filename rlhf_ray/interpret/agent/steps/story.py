"""Step: the causal story. From an object or concept over its direction to the action, with a verdict for each chain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import moments_of
from rlhf_ray.agents.play import play
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.at_hand import action_names, nothing_inside, recorded, site_name
from rlhf_ray.interpret.agent.attribution.looked_at import world_of
from rlhf_ray.interpret.agent.bases.labels import classes, rows, usable, yes_no
from rlhf_ray.interpret.agent.bases.linear import Linear
from rlhf_ray.interpret.agent.candidates import auc, concepts_at
from rlhf_ray.interpret.agent.concepts import ELAPSED
from rlhf_ray.interpret.agent.controls import COUNT, controlled, random_bases
from rlhf_ray.interpret.agent.counterfactual import Counterfact, counterfact, go_on, snapshots_of
from rlhf_ray.interpret.agent.interventions import Intervention
from rlhf_ray.interpret.agent.story import (
    FEWEST,
    READ,
    SAME,
    At,
    Behaviour,
    CausalChain,
    Link,
    Response,
    behaviours_of,
    directions,
    measure,
)
from rlhf_ray.interpret.agent.story_drawing import diagram
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "story"
TITLE = "The causal story"

FITTED = 6000
"""Steps that directions are fitted to."""
MOMENTS, FEWEST_MOMENTS = 400, 120
"""Moments that links are measured at."""
LEVELS, FEWEST_LEVELS = 200, 60
"""Levels played with a direction taken away throughout."""
CONCEPTS, BEHAVIOURS = 8, 2
EDITED, AHEAD = 100, 4
"""Moments whose level is edited, or from which the world model goes on, and its steps: few, so that it can be trusted."""
LONGEST = 1000
"""Steps after which an episode is cut."""
COPIES = 64
CLOCK = ELAPSED
"""A concept of every environment, which the agent can count and which no reward depends on by itself: it is always asked about."""
SHOWN = 6
"""Chains in the diagram."""
ORDER = ("both", "necessary", "sufficient", "contributes", "spurious", "decodable only", "not settled", "not read off")


def why_not(context: AgentContext) -> str | None:
    """Return why there is no story to tell; None otherwise."""
    return nothing_inside(context)


@dataclass(frozen=True)
class _Concept:
    """A concept that can be read off: direction, AUC of it and of random directions, its classes in held-out episodes, its kind."""

    basis: Linear
    auc: float
    auc_random: float
    classes: FloatArray
    yes_no: bool


def run(context: AgentContext) -> Section:
    """Measure the chains of all concepts that can be read off, and of the agent's most varied behaviours."""
    agent, site = context.subject.agent, site_of(context.subject.agent)
    test = recorded(context, "test")
    names = action_names(context)
    values, concepts = _concepts(context, test, site)
    behaviours = behaviours_of(test, agent.action_space, names)[:BEHAVIOURS]
    if not behaviours:
        return Section(
            NAME, TITLE, skipped="The agent always acts in the same way, so there is no behaviour to explain."
        )
    if not concepts:
        return Section(
            NAME, TITLE, skipped=f"No concept can be read off the agent's {site_name(agent)} with an AUC of {READ}."
        )
    moments_at = _moments(context, test)
    chains: list[CausalChain] = []
    for number, (name, concept) in enumerate(concepts.items()):
        context.say(f"the story of {name} ({number + 1} of {len(concepts)})")
        holds = concept.classes[moments_at]
        known = np.isfinite(holds)
        if min((holds == 1).sum(), (holds == 0).sum()) < FEWEST:
            continue
        at_rows, at_steps = moments_at[0][known], moments_at[1][known]
        at = At.of(test, at_rows, at_steps)
        respond = _going_on(context, test, at_rows, at_steps, behaviours) if len(test.env_states) else None
        success = _success(context, test, concept, values, site)
        found = measure(
            agent, at, holds[known] == 1, behaviours, concept.basis, values, (concept.auc, concept.auc_random),
            respond=respond, site=site, seed=context.subject.seed,
        )  # fmt: skip
        chains += [replace(each, success=success) for each in found]
    chains = _edited(context, test, chains, concepts, behaviours, site)
    chains = _ahead(context, test, chains, concepts, behaviours, site)
    if not chains:
        return Section(NAME, TITLE, skipped="No concept varies in the held-out episodes.")
    chains.sort(key=lambda each: (ORDER.index(each.verdict), -_weight(each)))
    for number, name in enumerate(concepts):
        concepts[name].basis.save(context.out / f"direction_{number}.npz")
    figures = {
        "site": site,
        "moments": len(moments_at[0]),
        "random": COUNT,
        "directions": {name: f"direction_{number}.npz" for number, name in enumerate(concepts)},
        "chains": [each.to_json() for each in chains],
    }
    write_text(context.out / "story.json", json.dumps(figures, indent=1) + "\n")
    picture = Picture(
        "story",
        diagram(chains[:SHOWN], site_name(agent)),
        "From what there is to what is done. Lines: how far each link was seen to context, and the thicker the more; dashed: "
        "no effect, or none that is clear of chance.",
    )
    return Section(
        NAME,
        TITLE,
        _statements(chains, concepts, site_name(agent)),
        _checks(chains),
        _tables(chains),
        [picture],
        figures,
    )


def _concepts(context: AgentContext, test: Episodes, site: str) -> tuple[FloatArray, dict[str, _Concept]]:
    """Return what the site holds, and the concepts that can be read off it on held-out levels, the best read first."""
    train = recorded(context, "train")
    at = np.argwhere(train.real)
    at = at[np.sort(context.rng(NAME).permutation(len(at))[:FITTED])]
    values = values_at(context.subject.agent, train, site)[at[:, 0], at[:, 1]].astype(np.float64)
    labels = {name: each[at[:, 0], at[:, 1]] for name, each in concepts_at(train).items()}
    known = {name: np.where(rows(each), classes(each), np.nan) for name, each in labels.items() if usable(each)}
    known = _distinct(known)
    other, theirs = values_at(context.subject.agent, test, site)[test.real].astype(np.float64), concepts_at(test)
    found = {}
    for name, basis in directions(values, known).items():
        if name not in theirs:
            continue
        middle = float(np.median(labels[name][rows(labels[name])]))
        now = _as_fitted(labels[name], theirs[name], middle)
        area = auc(basis, 0, other, now[test.real])
        if area is None or area < READ:
            continue
        random = [auc(each, 0, other, now[test.real]) or 0.5 for each in random_bases(basis, [0], values, None)]
        found[name] = _Concept(basis, area, max(random, default=0.5), now, yes_no(labels[name]))
    best = sorted(found, key=lambda name: -found[name].auc)
    count = max(4, round(CONCEPTS * min(1.0, context.subject.effort)))
    clock = [CLOCK] * (CLOCK in best[count:])
    return values, {name: found[name] for name in [*best[: count - len(clock)], *clock]}


def _distinct(classes_of: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Leave out concepts that nearly always say the same, or the opposite, as one before: they have one direction."""
    found: dict[str, FloatArray] = {}
    for name, own in classes_of.items():
        both = {other: np.isfinite(own) & np.isfinite(each) for other, each in found.items()}
        same = [(own[both[other]] == each[both[other]]).mean() for other, each in found.items() if both[other].any()]
        if not any(share > SAME or share < 1.0 - SAME for share in same):
            found[name] = own
    return found


def _as_fitted(fitted: FloatArray, labels: FloatArray, middle: float) -> FloatArray:
    """Return classes of ``labels`` by the border that those of ``fitted`` have: 0 and 1; NaN where unknown."""
    known = fitted[rows(fitted)]
    above = labels > middle if (known > middle).any() else labels >= middle
    upper = labels == 1 if yes_no(fitted) else above
    return np.where(np.isfinite(labels), upper, np.nan)


def _moments(context: AgentContext, test: Episodes) -> tuple[IntArray, IntArray]:
    at = np.argwhere(test.real)
    count = max(FEWEST_MOMENTS, round(MOMENTS * context.subject.effort))
    chosen = at[np.sort(context.rng("moments").permutation(len(at))[:count])]
    return chosen[:, 0], chosen[:, 1]


def _going_on(
    context: AgentContext, test: Episodes, at_rows: IntArray, at_steps: IntArray, behaviours: Sequence[Behaviour]
) -> Response:
    """Return the response in the environment: how often the agent behaves so in its next steps."""
    snapshots = snapshots_of(test, at_rows, at_steps)

    def respond(chosen: IntArray, interventions: Sequence[Intervention]) -> FloatArray:
        episodes, _ = go_on(
            context.subject.agent,
            context.subject.make_batch,
            snapshots[chosen],
            interventions=interventions,
            steps=AHEAD,
            mapper=context.mapper,
        )
        return np.stack([_frequency(episodes, each, True) for each in behaviours], 1)

    return respond


def _success(context: AgentContext, test: Episodes, concept: _Concept, values: FloatArray, site: str) -> Link:
    """Return what taking the direction away throughout does to the return, as a share of the return."""
    levels = np.unique(test.levels)[: max(FEWEST_LEVELS, round(LEVELS * context.subject.effort))]
    found = controlled(
        context.subject.agent, context.subject.make_batch, levels,
        lambda basis, components: Intervention(basis, components, "ablate_midpoint", site=site),
        concept.basis, [0], values, count=COUNT, copies=COPIES, seed=context.subject.seed, mapper=context.mapper,
    )  # fmt: skip
    before = max(abs(found.effect.returns.before), 1e-9)
    return Link(
        _scaled(found.effect.returns.difference, 1.0 / before),
        [each.returns.difference.mean / before for each in found.random],
    )


def _scaled(of: MeanEstimate, by: float) -> MeanEstimate:
    return MeanEstimate(
        of.mean * by, None if of.low is None else of.low * by, None if of.high is None else of.high * by
    )


def _edited(
    context: AgentContext,
    test: Episodes,
    chains: list[CausalChain],
    concepts: Mapping[str, _Concept],
    behaviours: Sequence[Behaviour],
    site: str,
) -> list[CausalChain]:
    """Add what editing the object does to score and behaviour: at the start, where that changes it; at single moments otherwise."""
    batch = context.subject.make_batch(1)
    edits = list(batch.edits)
    batch.close()
    if not edits:
        return chains
    done: dict[tuple[str, str], tuple[str, MeanEstimate, MeanEstimate]] = {}
    for edit in edits:
        try:
            found = _counterfacts(context, test, edit)
        except SettingError:  # states that can't be restored
            return chains
        for at_start, each in found:
            for name, concept in concepts.items():
                flips = _flips(each, name, test)
                if flips is None or (flips != 0).mean() < 0.5 * at_start or (flips != 0).sum() < FEWEST:
                    continue
                kept = np.flatnonzero(flips)
                sign = flips[kept]
                scores = [
                    concept.basis.transform(values_at(context.subject.agent, of, site)[kept, 0].astype(np.float64))[
                        :, 0
                    ]
                    for of in (each.plain, each.changed)
                ]
                levels = each.plain.levels[kept]
                moved = bootstrap((scores[1] - scores[0]) * sign, levels, context.subject.seed)
                for behaviour in behaviours:
                    acts = [_frequency(of.select(kept), behaviour, at_start) for of in (each.plain, each.changed)]
                    acted = bootstrap((acts[1] - acts[0]) * sign, levels, context.subject.seed)
                    key = (name, behaviour.name)
                    if key not in done or abs(moved.mean) > abs(done[key][1].mean):
                        done[key] = edit, moved, acted
    added = []
    for chain in chains:
        about = done.get((chain.concept, chain.behaviour))
        added.append(
            chain if about is None else replace(chain, edit=about[0], edit_score=about[1], edit_action=about[2])
        )
    return added


def _counterfacts(context: AgentContext, test: Episodes, edit: str) -> list[tuple[bool, Counterfact]]:
    """Make an edit at the start of held-out levels, and at moments."""
    count = max(2 * FEWEST, round(EDITED * context.subject.effort))
    levels = np.unique(test.levels)[:count]
    batch = context.subject.make_batch(min(COPIES, len(levels)))
    again = play(context.subject.agent, batch, levels, max_steps=LONGEST, keep_states=True)
    batch.close()
    at = np.argwhere(again.real)
    at = at[np.sort(context.rng(f"edit {edit}").permutation(len(at))[: 3 * count])]
    starts = snapshots_of(again, np.arange(len(again)), np.zeros(len(again), np.int64))
    later = snapshots_of(again, at[:, 0], at[:, 1])
    found = []
    for at_start, snapshots, steps in ((True, starts, LONGEST), (False, later, 1)):
        made = counterfact(
            context.subject.agent, context.subject.make_batch, snapshots, edit=edit, steps=steps, mapper=context.mapper
        )
        if made is not None:
            found.append((at_start, made))
    return found


def _flips(made: Counterfact, concept: str, test: Episodes) -> FloatArray | None:
    """Return how an edit changes a concept at once: 1 to yes, -1 to no, 0 not at all, ``[n]``; None if it is unknown."""
    before, after = (concepts_at(of).get(concept) for of in (made.plain, made.changed))
    if before is None or after is None or concept == CLOCK:
        return None
    fitted = concepts_at(test)[concept][test.real]
    middle = float(np.median(fitted[rows(fitted)]))
    change = _as_fitted(fitted, after[:, 0], middle) - _as_fitted(fitted, before[:, 0], middle)
    return np.nan_to_num(change)


def _frequency(episodes: Episodes, behaviour: Behaviour, whole: bool) -> FloatArray:
    """Return how often each episode behaves so: in all its steps, or in the first."""
    done = behaviour.taken(episodes.actions)
    if not whole:
        return done[:, 0]
    found: FloatArray = (done * episodes.real).sum(1) / np.maximum(episodes.lengths, 1)
    return found


def _ahead(
    context: AgentContext,
    test: Episodes,
    chains: list[CausalChain],
    concepts: Mapping[str, _Concept],
    behaviours: Sequence[Behaviour],
    site: str,
) -> list[CausalChain]:
    """Add what taking a direction away does inside the world model."""
    world = world_of(context)
    if world is None:
        return chains
    done: dict[tuple[str, str], MeanEstimate] = {}
    for name, concept in concepts.items():
        at = np.argwhere(test.real & (concept.classes == 1) & (np.arange(test.real.shape[1]) >= world.context - 1))
        if len(at) < FEWEST:
            continue
        at = at[
            np.sort(
                context.rng(f"ahead {name}").permutation(len(at))[
                    : max(2 * FEWEST, round(EDITED * context.subject.effort))
                ]
            )
        ]
        moments = moments_of(context.subject.agent, test, at[:, 0], at[:, 1], context=world.context)
        removal = Intervention(concept.basis, [0], "ablate_midpoint", site=site)
        before, after = (play_in_world(world, context.subject.agent, moments, AHEAD, each) for each in ((), [removal]))
        for behaviour in behaviours:
            change = _frequency(after, behaviour, True) - _frequency(before, behaviour, True)
            done[name, behaviour.name] = bootstrap(change, at[:, 0], context.subject.seed)
    return [replace(each, model=done.get((each.concept, each.behaviour))) for each in chains]


def _weight(chain: CausalChain) -> float:
    lost = 0.0 if chain.success is None else abs(chain.success.change.mean)
    return max(abs(chain.removed.change.mean), abs(chain.moved.change.mean), abs(chain.back.change.mean), lost)


def _statements(chains: Sequence[CausalChain], concepts: Mapping[str, _Concept], site: str) -> list[Statement]:
    found = [_statement(chain, site, concepts[chain.concept].yes_no) for chain in chains]
    return [each for each in found if each is not None]


def _statement(chain: CausalChain, site: str, yes_no: bool) -> Statement | None:
    what, does, (absent, present) = f"concept “{chain.concept}”", f"“{chain.behaviour}”", chain.shares
    on, off = ("where it holds", "where it does not hold") if yes_no else ("where it is high", "where it is low")
    effects = (
        f"{does} makes up {present:.0%} of the next actions {on}, and {absent:.0%} {off}. {_moves(chain, on, off)}"
    )
    if chain.success is not None:
        most = f" (random directions: at most {_most(chain.success):.0%})" if chain.success.random else ""
        effects += (
            f" With the direction taken away throughout, the return changes by {_percent(chain.success.change)}{most}."
        )
    edited = f"{effects}{_edit_text(chain)}"
    if chain.verdict in ("necessary", "both"):
        enough = ", and it is enough to bring it about" if chain.verdict == "both" else ""
        text = f"The {site} holds the {what}, and {does} depends on it{enough}. {edited}"
    elif chain.verdict == "sufficient":
        without = "ends without it, as with some random direction" if chain.ending else "does not end without it"
        text = f"The {what} in the {site} is enough for {does}, which {without}. {edited}"
    elif chain.verdict == "contributes":
        text = f"The {what} in the {site} is one of several causes of {does}. {edited}"
    elif chain.verdict in ("decodable only", "spurious"):
        text = (
            f"The {what} can be read off the {site} (AUC {chain.auc:.2f}; random direction {chain.auc_random:.2f}), but {does} "
            f"does not depend on it. {effects} For comparison, as far a move along the direction that {does} depends on most: "
            f"{_points(chain.control)}."
        )
        if chain.verdict == "spurious":
            text += f" The gradient says otherwise ({chain.gradient:+.2f} log-odds per standard deviation): it misleads here."
        return Statement("holds", text, chain.auc, chain.concept)
    else:
        return None
    return Statement("uses", text, _weight(chain))


def _moves(chain: CausalChain, on: str, off: str) -> str:
    """Say what the interventions do that the verdict rests on, the largest of a kind, each beside random directions."""
    away = [(f"Taking its direction away {on}", chain.removed), (f"Moving it from {on} to {off}", chain.back)]
    there = [(f"Moving it from {off} to {on}", chain.moved)]
    asked = {"necessary": [away], "sufficient": [there], "both": [away, there]}.get(chain.verdict, [away + there])
    said = []
    for kind in asked:
        # What stands out comes before what is larger.
        words, link = max(kind, key=lambda each: (each[1].stands_out, abs(each[1].change.mean)))
        which = {0: "no other direction to compare it with", 1: "the only other direction, moved as far"}.get(
            count := len(link.random), f"{count} random directions, moved as far"
        )
        most = f": at most {100 * _most(link):.0f}" if count else ""
        said.append(f"{words} changes that by {_points(link.change)} ({which}{most}).")
    return " ".join(said)


def _edit_text(chain: CausalChain) -> str:
    if chain.edit is None or chain.edit_score is None or chain.edit_action is None:
        return ""
    return (
        f" In the level itself, the edit “{chain.edit}” moves the score by {chain.edit_score.mean:.0%} of the distance between the "
        f"classes, and changes how often the action is “{chain.behaviour}” by {_points(chain.edit_action)}."
    )


def _points(of: MeanEstimate) -> str:
    if of.low is None or of.high is None:
        return f"{100 * of.mean:+z.0f} points"
    return f"{100 * of.mean:+z.0f} points [{100 * of.low:+z.0f}, {100 * of.high:+z.0f}]"


def _percent(of: MeanEstimate) -> str:
    if of.low is None or of.high is None:
        return f"{of.mean:+z.0%}"
    return f"{of.mean:+z.0%} [{of.low:+z.0%}, {of.high:+z.0%}]"


def _most(link: Link) -> float:
    return max((abs(each) for each in link.random), default=0.0)


def _checks(chains: Sequence[CausalChain]) -> list[Check]:
    blind = [each for each in chains if each.control.holds_zero and all(link.change.holds_zero for link in each.links)]
    says = "" if not blind else "In these chains nothing moves the action, so an absent effect means nothing."
    share = 1.0 - len(blind) / len(chains)
    return [Check("interventions have the power to change the behaviour", not blind, share, "in every chain", says)]


def _tables(chains: Sequence[CausalChain]) -> list[Table]:
    heads = [
        "concept", "action", "AUC (best random)", "without it, with it", "gradient", "taken away", "moved to without",
        "moved to with", "random, most", "return", "taken away, in the model", "edit: score, action", "verdict",
    ]  # fmt: skip
    body = []
    for each in chains:
        edit = "" if each.edit is None or each.edit_score is None or each.edit_action is None else (
            f"{each.edit}: {each.edit_score.text()}, {each.edit_action.text()}"
        )  # fmt: skip
        model = "" if each.model is None else each.model.text()
        random = max(_most(link) for link in (each.removed, each.back, each.moved))
        body.append(
            [
                each.concept, each.behaviour, f"{each.auc:.2f} ({each.auc_random:.2f})",
                f"{each.shares[0]:.0%}, {each.shares[1]:.0%}", f"{each.gradient:.2f}", each.removed.change.text(),
                each.back.change.text(), each.moved.change.text(), f"{random:.2f}",
                "" if each.success is None else _percent(each.success.change), model, edit, each.verdict,
            ]
        )  # fmt: skip
    caption = (
        f"Chains from a concept over its direction to an action: how its share of the next {AHEAD} actions changes, from moments "
        "of held-out levels on, with 95 % intervals. With it: where the concept holds (numbers: above the median). Taken away, "
        "moved to without: from moments with it; moved to with: from moments without it. Random, most: the largest change by "
        f"{len(chains[0].removed.random)} random directions, moved as far. Gradient: log-odds of the action per standard "
        "deviation. Return: with the direction taken away throughout. Verdict, necessary: taking it away undoes half of the "
        "difference that the concept makes, or more, or costs the return; sufficient: putting it there makes half of it, or more; "
        "both: both; contributes: an effect, but less; spurious: none, although the gradient says so."
    )
    return [Table(heads, body, caption)]


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=why_not)
