"""For each concept: can it be read off each agent, and does each agent need it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.agents.play import NotANumberError
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent import samples
from rlhf_ray.interpret.agent.comparison.pair import LEAST, LONGEST, AgentPair, Use, moved, use_of
from rlhf_ray.interpret.agent.concepts import DecodedConcept, concepts_at, decode
from rlhf_ray.interpret.agent.controls import Controlled, controlled
from rlhf_ray.interpret.agent.erasure import GONE, Classes, Erasure, Held, erasures
from rlhf_ray.interpret.agent.held import FITTED
from rlhf_ray.interpret.agent.rewriting import taken_in_the_loop
from rlhf_ray.interpret.agent.story import NONE
from rlhf_ray.interpret.directions import Directions, labels
from rlhf_ray.interpret.directions.controls import COUNT, random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
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
        acts: how far actions move on the same frames with the concept taken away; None if that was not tested.
        acts_random: the same for random removals.
        before: the true return in the environment.
        returns: its change with the concept taken away.
        returns_random: the same for random removals.
        matched: whether a random removal takes a comparable share of the variance; see `Controlled.matched`.
        gone: whether nothing reads the concept once it is taken away.
        nothing_reads: whether it was to be taken away, but it is not held, and no direction reads it.
    """

    decoded: DecodedConcept | None
    acts: MeanEstimate | None = None
    acts_random: Sequence[float] = ()
    before: float = 0.0
    returns: MeanEstimate | None = None
    returns_random: Sequence[float] = ()
    matched: bool = True
    gone: bool = True
    nothing_reads: bool = False

    @property
    def held(self) -> bool:
        """Whether it can be read off."""
        return self.decoded is not None and self.decoded.score >= HELD[self.decoded.measure]

    @property
    def used(self) -> bool:
        """Whether actions or the return change without it: the whole interval lies beyond what any random removal does."""
        if self.acts is None or self.returns is None or not self.matched:
            return False
        most = max(map(abs, self.returns_random), default=0.0)
        return self.acts.beyond(max(LEAST, *self.acts_random)) or self.returns.beyond(most)

    @property
    def unused(self) -> bool:
        """Whether nothing reads it, or it was taken away whole and the intervals of both changes stay within `NONE`."""
        if self.acts is None or self.returns is None:
            return self.nothing_reads
        scale = max(abs(self.before), 1e-9)
        ends = (
            self.acts.high,
            *(None if end is None else abs(end) / scale for end in (self.returns.low, self.returns.high)),
        )
        return self.gone and all(end is not None and end <= NONE for end in ends)


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
    def use(self) -> Use:
        """Who uses it."""
        none = MeanEstimate(0.0, 0.0, 0.0)  # what nothing reads can't be taken away
        acts, returns = ([getattr(one, name) or none for one in self.both] for name in ("acts", "returns"))
        uses, unused = ((self.first.used, self.second.used), (self.first.unused, self.second.unused))
        return use_of(uses, unused, apart(*acts) or apart(*returns))

    @property
    def tested(self) -> bool:
        """Whether it was to be taken away from both."""
        return all(one.acts is not None or one.nothing_reads for one in self.both)

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
    tested = [{one.concept: TestedConcept(one) for one in _read(pair, who)} for who in (0, 1)]
    if not any(tested):
        return WORDS.skipped("no_concepts")
    scores: dict[str, float] = {}
    for name, one in (item for concepts in tested for item in concepts.items()):
        if one.held and one.decoded is not None:
            scores[name] = max(scores.get(name, 0.0), one.decoded.score)
    best = sorted(scores, key=lambda name: -scores[name])[:MOST]  # what one holds is taken away from both
    levels = pair.levels(3, pair.count(PLAYED, FEWEST))
    for who, concepts in enumerate(tested):
        values, found = _erasures(pair, who, best, pair.levels(4 + who, pair.count(PLAYED, FEWEST)))
        plain = pair.subjects[who].play(levels, frames=False, max_steps=LONGEST)
        for name in best:
            concept = concepts.get(name, TestedConcept(None))
            if name in found and not found[name].taken:
                continue  # the memory writes it again: its figures would not be of a removal
            if name in found:
                context.say(f"{pair.names[who]} without {name}")
                beside = [one.basis.filters[:1] for other, one in found.items() if other != name]
                hold = np.concatenate(beside) if beside else None
                concepts[name] = _without(pair, who, concept, found[name], values, plain, hold)
            elif not concept.held:
                concepts[name] = replace(concept, nothing_reads=True)
    nothing, names = TestedConcept(None), dict.fromkeys([*tested[0], *tested[1]])
    features = [ComparedConcept(name, tested[0].get(name, nothing), tested[1].get(name, nothing)) for name in names]
    figures = ComparedConcepts(features)
    return WORDS.section(_statements(pair, features), tables=[_table(pair, features)], figures=figures)


def _read(pair: AgentPair, who: int) -> list[DecodedConcept]:
    """Return how well each concept is read off an agent at the frames."""
    onlooker, moments = pair.frames.agents[who], pair.frames.moments
    every = concepts_of(onlooker.thoughts, feature_names(pair.first.observation_space))
    known = {name: moments.cut(concept) for name, concept in every.items()}
    values, levels = onlooker.inside, pair.frames.levels
    if float(values.std(0).max(initial=0.0)) < 1e-9:
        return []
    inside = samples.Samples(moments.rows, moments.steps, values, levels)
    inputs = {
        FRAME: samples.frames(onlooker.thoughts, inside),
        UNTRAINED: next((twin.inside for twin in pair.frames.twins[who]), None),
    }
    controls = {name: seen for name, seen in inputs.items() if seen is not None}
    return decode(values, known, levels, controls, pair.seed)


def _erasures(
    pair: AgentPair, who: int, names: Sequence[str], levels_played: IntArray
) -> tuple[FloatArray, dict[str, Erasure]]:
    """Return what an agent holds, ``[n, size]``, and the directions of concepts: of half of the levels, read on the other half.

    They are taken away from ``levels_played`` as well, where the memory may write them again.
    """
    onlooker, rng = pair.frames.agents[who], np.random.default_rng([pair.seed, 0xE2])
    steps = draw_steps(onlooker.thoughts.real, FITTED, rng)
    values = steps.cut(values_at(onlooker.agent, onlooker.thoughts, onlooker.site)).astype(np.float64)
    levels = pair.groups(onlooker.thoughts.levels)[steps.rows]
    distinct = rng.permutation(np.unique(levels))
    fitted = np.isin(levels, distinct[: (len(distinct) + 1) // 2])
    find = partial(concepts_of, names=feature_names(pair.first.observation_space))
    every = find(onlooker.thoughts)
    known = {name: steps.cut(every[name]) for name in names if labels.usable(steps.cut(every[name]))}
    if fitted.all() or not known or float(values.std(0).max(initial=0.0)) < 1e-9:
        return values, {}
    borders = {name: Classes.fit(each) for name, each in known.items()}
    fit, test = (
        Held(values[part], {name: border.every(known[name][part]) for name, border in borders.items()})
        for part in (fitted, ~fitted)
    )
    found = erasures(fit, test, list(borders), GONE)
    return values, {
        name: taken_in_the_loop(pair.subjects[who], one, name, borders, values, levels_played, find)
        for name, one in found.items()
    }


def concepts_of(episodes: Episodes, names: Sequence[str]) -> Mapping[str, FloatArray]:
    """Return what the environment says about its state, ``[n, T]`` by name; of vectors without that, their features ``names``."""
    known = concepts_at(episodes, ELEMENTS)
    if known or episodes.observations.ndim != 3:
        return known
    steps = episodes.actions.shape[1]
    return {
        name: episodes.observations[:, :steps, number].astype(np.float64) for number, name in enumerate(names[:MOST])
    }


def _without(
    pair: AgentPair,
    who: int,
    concept: TestedConcept,
    found: Erasure,
    values: FloatArray,
    plain: Episodes,
    hold: FloatArray | None,
) -> TestedConcept:
    """Take a concept away, on the same frames and in the environment; ``hold``: filters that random removals leave as they are."""
    onlooker, site, components = pair.frames.agents[who], site_of(pair.agents[who]), range(len(found.basis))

    def removal(direction: Directions, components: Sequence[int]) -> Intervention:
        return Intervention(direction, components, "ablate_midpoint", site=site)

    before, steps = onlooker.react(), np.zeros(len(pair.frames.moments), np.int64)

    def change(direction: Directions) -> FloatArray:
        edits = edits_at([removal(direction, range(len(direction)))], steps, np.arange(len(steps)))
        return moved(before, onlooker.react(edits=edits), pair.space)

    random = random_bases(found.basis, components, values, None, COUNT, pair.seed, hold)
    try:
        result: Controlled = controlled(
            onlooker.agent, pair.make_batch, plain.levels, removal, found.basis, components, values,
            plain=plain, groups=pair.groups(plain.levels), hold=hold, seed=pair.seed,
        )  # fmt: skip
    except NotANumberError:  # it, or a random removal, drives the memory beyond all numbers
        return concept
    returns = result.effect.returns
    return replace(
        concept,
        acts=estimate_mean(change(found.basis), pair.frames.levels),
        acts_random=[float(change(each).mean()) for each in random],
        before=returns.before,
        returns=returns.difference,
        returns_random=[each.returns.difference.mean for each in result.random],
        matched=result.matched,
        gone=found.gone,
    )


def _verdict(pair: AgentPair, concept: ComparedConcept) -> str:
    return WORDS.text("verdict", names=pair.names, use=concept.use, held=concept.held, tested=concept.tested)


def _table(pair: AgentPair, features: Sequence[ComparedConcept]) -> Table:
    heads = [WORDS.text("read", name=pair.names[0]), *HEADS, WORDS.text("read", name=pair.names[1]), *HEADS, "verdict"]
    rows = [[one.name, *_cells(one.first), *_cells(one.second), _verdict(pair, one)] for one in features]
    return WORDS.table("concepts", rows, heads, least=HELD, most=MOST, count=COUNT, within=NONE)


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
        names, kind = [one.name for one in same], "holds" if same[0].use in ("neither", "open") else "uses"
        yield WORDS.statement(kind, float(len(same)), names=names, verdict=verdict)


STEP = Step(WORDS.name, WORDS.title, run)
