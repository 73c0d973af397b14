"""For each concept: can it be read off each agent, and does each agent need it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.replay import site_of
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.agent import samples
from rlhf_ray.interpret.agent.candidates import separate_directions
from rlhf_ray.interpret.agent.comparison.pair import LEAST, LONGEST, AgentPair, Use, moved, use_of
from rlhf_ray.interpret.agent.concepts import DecodedConcept, concepts_at, decode
from rlhf_ray.interpret.agent.controls import controlled
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

PLAYED, FEWEST = 60, 12
"""Levels that are played without a concept."""
ELEMENTS, MOST = 4, 6
"""Elements of an array that are concepts of their own; concepts that are tested for need, the best read first."""
HELD = {"auc": 0.8, "r2": 0.5}
"""Score of a probe from which on a concept counts as held."""
FRAME, UNTRAINED = "one frame", "untrained"
HEADS = ("without it, actions move", "random", "return changes", "random")


@dataclass(frozen=True)
class TestedConcept:
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
        most = max(map(abs, self.returns_random), default=0.0)
        return acts_change or (abs(self.returns.mean) > most and not self.returns.holds_zero)


@dataclass(frozen=True)
class ComparedConcept:
    """A concept in both agents."""

    name: str
    first: TestedConcept
    second: TestedConcept

    @property
    def both(self) -> tuple[TestedConcept, TestedConcept]:
        """What was found for it in each."""
        return self.first, self.second

    @property
    def held(self) -> list[bool]:
        """Whether each holds it."""
        return [one.held for one in self.both]

    @property
    def uses(self) -> tuple[bool, bool]:
        """Whether each uses it."""
        return self.first.used, self.second.used

    @property
    def use(self) -> Use:
        """Who uses it. An effect that was not tested counts as none."""
        none = MeanEstimate(0.0, 0.0, 0.0)
        acts, returns = ([getattr(one, name) or none for one in self.both] for name in ("acts", "returns"))
        return use_of(self.uses, apart(*acts) or apart(*returns))

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return fields_of(self) | {"use": self.use, "held": self.held}


@dataclass(frozen=True)
class ComparedConcepts:
    """What the step finds."""

    features: list[ComparedConcept]


def apart(one: MeanEstimate, other: MeanEstimate) -> bool:
    """Return whether two intervals have nothing in common."""
    (low, high), (other_low, other_high) = (
        (each.mean if each.low is None else each.low, each.mean if each.high is None else each.high)
        for each in (one, other)
    )
    return low > other_high or other_low > high


def run(context: StepContext[AgentPair]) -> Section:
    """Probe for each concept, and take away those that are held."""
    pair = context.subject
    for agent, name in zip(pair.agents, pair.names, strict=True):
        if not agent.memory_size and not agent.layers:
            return WORDS.skipped("nothing_inside", name=name)
    read = [_read(pair, who) for who in (0, 1)]
    tested = [{name: TestedConcept(one) for name, one in decoded.items()} for _, _, decoded in read]
    if not any(tested):
        return WORDS.skipped("no_concepts")
    scores: dict[str, float] = {}
    for name, one in (item for concepts in tested for item in concepts.items()):
        if one.held and one.decoded is not None:
            scores[name] = max(scores.get(name, 0.0), one.decoded.score)
    best = sorted(scores, key=lambda name: -scores[name])[:MOST]  # what one holds is taken away from both
    for who, (values, labels, decoded) in enumerate(read):
        known = {name: labels[name] for name in best if name in decoded}
        for name, basis in separate_directions(values, known).items():
            context.say(f"{pair.names[who]} without {name}")
            tested[who][name] = _without(pair, who, decoded[name], basis, values, labels[name])
    nothing, names = TestedConcept(None), dict.fromkeys([*tested[0], *tested[1]])
    features = [ComparedConcept(name, tested[0].get(name, nothing), tested[1].get(name, nothing)) for name in names]
    figures = ComparedConcepts(features)
    return WORDS.section(_statements(pair, features), tables=[_table(pair, features)], figures=figures)


def _read(pair: AgentPair, who: int) -> tuple[FloatArray, dict[str, Array], dict[str, DecodedConcept]]:
    """Return what an agent holds at the frames, ``[n, size]``, the labels of all concepts, and how well each is read off."""
    onlooker, moments = pair.frames.agents[who], pair.frames.moments
    labels = {name: moments.cut(concept) for name, concept in concepts_of(onlooker.thoughts).items()}
    values = onlooker.inside
    if float(values.std(0).max(initial=0.0)) < 1e-9:
        return values, labels, {}
    levels = np.asarray(onlooker.thoughts.levels)[moments.rows]
    inside = samples.Samples(moments.rows, moments.steps, values, levels)
    inputs = {
        FRAME: samples.frames(onlooker.thoughts, inside),
        UNTRAINED: next((twin.inside for twin in pair.frames.twins[who]), None),
    }
    controls = {name: seen for name, seen in inputs.items() if seen is not None}
    return values, labels, {one.concept: one for one in decode(values, labels, levels, controls, pair.seed)}


def concepts_of(episodes: Episodes) -> Mapping[str, FloatArray]:
    """Return what the environment says about its state, ``[n, T]`` by name; of vectors without that, their features."""
    known = concepts_at(episodes, ELEMENTS)
    if known or episodes.observations.ndim != 3:
        return known
    steps = episodes.actions.shape[1]
    return {
        f"feature {number}": episodes.observations[:, :steps, number].astype(np.float64)
        for number in range(min(MOST, episodes.observations.shape[2]))
    }


def _without(
    pair: AgentPair, who: int, decoded: DecodedConcept, basis: Directions, values: FloatArray, labels: Array
) -> TestedConcept:
    onlooker, rows, site = pair.frames.agents[who], pair.frames.moments.rows, site_of(pair.agents[who])

    def removal(direction: Directions, components: Sequence[int]) -> Intervention:
        return Intervention(direction, components, "ablate_midpoint", site=site)

    plain, steps = onlooker.react(), np.zeros(len(rows), np.int64)

    def change(direction: Directions) -> FloatArray:
        edits = edits_at([removal(direction, range(len(direction)))], steps, np.arange(len(rows)))
        return moved(plain, onlooker.react(edits=edits), pair.space)

    levels = pair.levels(3, pair.count(PLAYED, FEWEST))
    before = pair.play(onlooker.agent, levels, frames=False, max_steps=LONGEST)
    result = controlled(
        onlooker.agent,
        pair.make_batch,
        levels,
        removal,
        basis,
        [0],
        values,
        labels=labels,
        plain=before,
        seed=pair.seed,
    )
    return TestedConcept(
        decoded,
        bootstrap(change(basis), rows, pair.seed),
        [float(change(random).mean()) for random in random_bases(basis, [0], values, labels, seed=pair.seed)],
        result.effect.returns.difference,
        [random.returns.difference.mean for random in result.random],
    )


def _verdict(pair: AgentPair, concept: ComparedConcept) -> str:
    return WORDS.text("verdict", names=pair.names, use=concept.use, held=concept.held)


def _table(pair: AgentPair, features: Sequence[ComparedConcept]) -> Table:
    heads = [WORDS.text("read", name=pair.names[0]), *HEADS, WORDS.text("read", name=pair.names[1]), *HEADS, "verdict"]
    rows = [[one.name, *_cells(one.first), *_cells(one.second), _verdict(pair, one)] for one in features]
    return WORDS.table("concepts", rows, heads, least=HELD, count=COUNT)


def _cells(tested: TestedConcept) -> list[str]:
    decoded = tested.decoded
    if decoded is None:
        return ["–"] * (1 + len(HEADS))
    beside = [f"{decoded.controls[name]:.2f}" for name in (FRAME, UNTRAINED) if name in decoded.controls]
    score = WORDS.text("score", one=decoded, beside=beside)
    if tested.acts is None:
        return [score, *["–"] * len(HEADS)]
    random = [f"{max(map(abs, sizes), default=0.0):.2f}" for sizes in (tested.acts_random, tested.returns_random)]
    return [score, estimate(tested.acts), random[0], estimate(tested.returns), random[1]]


def _statements(pair: AgentPair, features: Sequence[ComparedConcept]) -> Iterator[Statement]:
    """Say which concepts have which verdict, one sentence for each verdict."""
    verdicts: dict[str, list[ComparedConcept]] = {}
    for one in features:
        verdicts.setdefault(_verdict(pair, one), []).append(one)
    for verdict, same in verdicts.items():
        names, kind = [one.name for one in same], "holds" if same[0].use == "neither" else "uses"
        yield WORDS.statement(kind, float(len(same)), names=names, verdict=verdict)


STEP = Step(WORDS.name, WORDS.title, run)
