"""For each concept: can it be read off each agent, and does each agent need it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.agent import samples
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.candidates import concept_directions, concepts_at
from rlhf_ray.interpret.agent.comparison.pair import LONGEST, AgentPair, acts, moved, sites, text
from rlhf_ray.interpret.agent.concepts import DecodedConcept, decode
from rlhf_ray.interpret.agent.controls import COUNT, controlled, random_bases
from rlhf_ray.interpret.agent.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "concepts"
TITLE = "What each one holds, and what each one needs"

PLAYED = 60
"""Levels that are played without a concept."""
ELEMENTS, MOST = 4, 6
"""Elements of an array that are concepts of their own; concepts that are tested for need, the best read first."""
HELD = {"auc": 0.8, "r2": 0.5}
"""Score of a probe from which on a concept counts as held."""
LEAST = 0.02
"""How far actions have to move, in the mean, before a concept or an object counts as used."""
UNSETTLED = "one uses it; whether the other does less is not settled"
FRAME, UNTRAINED = "one frame", "untrained"


@dataclass(frozen=True)
class Tested:
    """What was found for a concept in one agent.

    Attributes:
        decoded: how well it is read off; None if it could not be tested.
        acts: how far actions move on the same frames without the concept's direction; None if that was not tested.
        acts_random: the same for random directions.
        returns: change of the true return in the environment without it.
        returns_random: the same for random directions.
    """

    decoded: DecodedConcept | None
    acts: MeanEstimate | None = None
    acts_random: Sequence[float] = ()
    returns: MeanEstimate | None = None
    returns_random: Sequence[float] = ()

    @property
    def held(self) -> bool:
        """Whether it can be read off."""
        return self.decoded is not None and self.decoded.score >= HELD[self.decoded.measure]

    @property
    def used(self) -> bool:
        """Whether actions or the return change without it, by more than with any random direction."""
        if self.acts is None or self.returns is None:
            return False
        low = self.acts.mean if self.acts.low is None else self.acts.low
        acts_change = low > max(LEAST, *self.acts_random, 0.0)
        most = max((abs(each) for each in self.returns_random), default=0.0)
        return acts_change or (abs(self.returns.mean) > most and not self.returns.holds_zero)

    def values(self) -> dict[str, Any]:
        """Return all figures."""
        return asdict(self) | {"held": self.held, "used": self.used}


def verdict(first: Tested, second: Tested, names: tuple[str, str]) -> str:
    """Return who uses a concept, in words."""
    if first.used and second.used:
        return "both use it"
    if (first.used or second.used) and not _differ(first, second):
        return UNSETTLED
    if first.used or second.used:
        user, other = (names[0], second) if first.used else (names[1], first)
        return f"only {user} uses it" + ("; the other holds it" if other.held else "")
    if first.held and second.held:
        return "both hold it without need"
    if first.held or second.held:
        return f"only {names[0] if first.held else names[1]} holds it, without need"
    return "neither holds it"


def _differ(first: Tested, second: Tested) -> bool:
    """Return whether effects differ by more than their intervals; an untested one counts as none."""
    none = MeanEstimate(0.0, 0.0, 0.0)
    both = ((first.acts or none, second.acts or none), (first.returns or none, second.returns or none))
    return any(apart(*each) for each in both)


def apart(one: MeanEstimate, other: MeanEstimate) -> bool:
    """Return whether two intervals have nothing in common."""
    ends = [
        (each.mean if each.low is None else each.low, each.mean if each.high is None else each.high)
        for each in (one, other)
    ]
    return ends[0][0] > ends[1][1] or ends[1][0] > ends[0][1]


def run(context: StepContext[AgentPair]) -> Section:
    """Probe for each concept, and take away those that are held."""
    pair = context.subject
    for agent, name in zip(pair.agents, pair.names, strict=True):
        if not agent.memory_size and not agent.layers:
            return Section(NAME, TITLE, skipped=f"{name} has neither memory nor layers to look into.")
    read = [_read(pair, who) for who in (0, 1)]
    found = [{name: Tested(each) for name, each in of.items()} for _, _, of in read]
    if not any(found):
        return Section(NAME, TITLE, skipped="The environment says nothing that varies about its state.")
    nothing = Tested(None)
    scores: dict[str, float] = {}
    for of in found:
        for name, each in of.items():
            if each.held and each.decoded is not None:
                scores[name] = max(scores.get(name, 0.0), each.decoded.score)
    tested = sorted(scores, key=lambda name: -scores[name])[:MOST]  # what one holds is taken away from both
    for who, (values, labels, decoded) in enumerate(read):
        known = {name: labels[name] for name in tested if name in decoded}
        for name, basis in concept_directions(values, known, pair.seed).items():
            context.say(f"{pair.names[who]} without {name}")
            found[who][name] = _without(pair, who, decoded[name], basis, values, labels[name])
    rows: list[list[Any]] = []
    features = []
    for concept in dict.fromkeys([*found[0], *found[1]]):
        both = found[0].get(concept, nothing), found[1].get(concept, nothing)
        says = verdict(*both, pair.names)
        rows.append([concept, *_cells(both[0]), *_cells(both[1]), says])
        features.append(
            {"name": concept, "first": both[0].values(), "second": both[1].values(), "verdict": says}
            | {"used": [each.used for each in both], "held": [each.held for each in both]}
        )
    heads = ["concept"]
    for name in pair.names:
        heads += [f"{name}: read off", "without it, actions move", "random", "return changes", "random"]
    caption = (
        f"Read off: AUC (R² of numbers) of a linear probe on levels it was not fitted to (in brackets one frame, untrained "
        f"twin). From {HELD['auc']} (R² {HELD['r2']}) on it counts as held; its direction is set to its midpoint, on the "
        f"same frames, and in the environment at every step. Random: the most of {COUNT} random directions. Intervals: 95 %. "
        "Concepts that go together have directions that overlap."
    )
    tables = [Table([*heads, "verdict"], rows, caption)]
    return Section(NAME, TITLE, _statements(features), tables=tables, values={"features": features})


def _read(pair: AgentPair, who: int) -> tuple[FloatArray, dict[str, Array], dict[str, DecodedConcept]]:
    """Return what an agent holds at the frames, ``[n, size]``, the labels of all concepts, and how well each is read off."""
    agent, frames = pair.agents[who], pair.frames
    thoughts, site = frames.thoughts[who], next(iter(sites(agent)), None)
    labels = {name: frames.moments.cut(each) for name, each in concepts_of(thoughts).items()}
    values = frames.moments.cut(values_at(agent, thoughts, site)).astype(np.float64)
    if float(values.std(0).max(initial=0.0)) < 1e-9:
        return values, labels, {}
    levels = np.asarray(thoughts.levels)[frames.moments.rows]
    found = samples.Samples(frames.moments.rows, frames.moments.steps, values, levels)
    controls: dict[str, FloatArray] = {}
    if (seen := samples.frames(thoughts, found)) is not None:
        controls[FRAME] = seen
    if (fresh := samples.untrained(agent, frames.episodes, found, site, pair.seed + 1)) is not None:
        controls[UNTRAINED] = fresh
    return values, labels, {each.concept: each for each in decode(values, labels, levels, controls, pair.seed)}


def concepts_of(episodes: Episodes) -> Mapping[str, FloatArray]:
    """Return what the environment says about its state, ``[n, T]`` by name; of vectors without that, their features."""
    said = concepts_at(episodes, ELEMENTS)
    if said or episodes.observations.ndim != 3:
        return said
    steps = episodes.actions.shape[1]
    return {
        f"feature {at}": episodes.observations[:, :steps, at].astype(np.float64)
        for at in range(min(MOST, episodes.observations.shape[2]))
    }


def _without(
    pair: AgentPair, who: int, decoded: DecodedConcept, basis: Basis, values: FloatArray, labels: Array
) -> Tested:
    agent, frames = pair.agents[who], pair.frames
    site = site_of(agent)

    def make(of: Basis, components: Sequence[int]) -> Intervention:
        return Intervention(of, components, "ablate_midpoint", site=site)

    plain = acts(pair.decide(who), pair.space)
    steps, rows = np.zeros(len(frames.moments.rows), np.int64), np.arange(len(frames.moments.rows))

    def change(of: Basis) -> FloatArray:
        edits = edits_at([make(of, [0])], steps, rows)
        return moved(plain, acts(pair.decide(who, edits=edits), pair.space), pair.space)

    random = random_bases(basis, [0], values, labels, seed=pair.seed)
    levels = pair.levels(3, pair.count(PLAYED, 12))
    cut = {"max_steps": LONGEST}
    before = pair.play(agent, levels, frames=False, **cut)
    effect = controlled(
        agent, pair.make_batch, levels, partial(make), basis, [0], values, labels=labels, plain=before, seed=pair.seed
    )
    return Tested(
        decoded,
        bootstrap(change(basis), frames.moments.rows, pair.seed),
        [float(change(each).mean()) for each in random],
        effect.effect.returns.difference,
        [each.returns.difference.mean for each in effect.random],
    )


def _cells(tested: Tested) -> list[str]:
    decoded = tested.decoded
    if decoded is None:
        return ["–"] * 5
    beside = ", ".join(f"{decoded.controls[name]:.2f}" for name in (FRAME, UNTRAINED) if name in decoded.controls)
    interval = "" if decoded.interval is None else f" [{decoded.interval[0]:.2f}, {min(1.0, decoded.interval[1]):.2f}]"
    random = [f"{max(map(abs, of), default=0.0):.2f}" for of in (tested.acts_random, tested.returns_random)]
    read = f"{'AUC' if decoded.measure == 'auc' else 'R²'} {decoded.score:.2f}{interval}" + (
        f" ({beside})" if beside else ""
    )
    if tested.acts is None:
        return [read, "–", "–", "–", "–"]
    return [read, text(tested.acts), random[0], text(tested.returns), random[1]]


def _statements(features: Sequence[dict[str, Any]]) -> list[Statement]:
    """Say which concepts have which verdict, one sentence for each verdict."""
    said: dict[str, list[str]] = {}
    for each in features:
        said.setdefault(each["verdict"], []).append(each["name"])
    return [
        Statement(
            "uses" if "use" in what and "without" not in what else "holds",
            f"{', '.join(names)}: {what}.",
            float(len(names)),
        )
        for what, names in said.items()
    ]


STEP = Step(NAME, TITLE, run)
