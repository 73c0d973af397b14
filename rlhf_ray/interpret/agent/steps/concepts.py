"""What can be read off the agent's memory, beside one frame, the untrained agent, and shuffled labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_ray.interpret.agent import concepts, samples
from rlhf_ray.interpret.agent.concepts import DecodedConcept
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside
from rlhf_ray.study.plots import bars
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

STEPS, FEWEST = 2500, 500
FRAME, UNTRAINED = "one frame", "untrained agent"
GAIN = 0.05
"""How far above one frame a concept has to be readable for a sentence."""
TOLD = 5
"""Concepts that the report names."""
CHANCE = {"auc": 0.5, "r2": 0.0}
TOLERANCE = 0.1
"""How far from chance probes of shuffled labels may be."""
NOISE = 0.02
"""How far below a single component a probe may be."""
SINGLE = ("unit", "pca", "ica")


@dataclass(frozen=True)
class Concepts:
    """What the step finds.

    Attributes:
        site: where concepts are read.
        steps: steps that they are read at.
        concepts: how well each is read.
    """

    site: str
    steps: int
    concepts: list[DecodedConcept]


def run(context: AgentContext) -> Section:
    """Probe for each concept."""
    subject, episodes = context.subject, recorded(context)
    steps = max(FEWEST, round(STEPS * min(1.0, subject.effort)))
    inside = samples.samples(subject.agent, episodes, most=steps, seed=subject.seed)
    labels = {name: inside.cut(label) for name, label in concepts.library(episodes, subject.action_names).items()}
    inputs = {
        FRAME: samples.frames(episodes, inside),
        UNTRAINED: samples.untrained(subject.agent, episodes, inside, subject.seed + 1),
    }
    controls = {name: values for name, values in inputs.items() if values is not None}
    context.say(f"probes for {len(labels)} concepts")
    decoded = concepts.decode(inside.values, labels, inside.levels, controls, subject.seed)
    figures = Concepts(subject.site_name, len(inside), decoded)
    if not decoded:
        return WORDS.section(checks=[WORDS.check("any", None, 0.0)], figures=figures)
    return WORDS.section(_statements(figures), _checks(decoded), _tables(figures), _pictures(decoded), figures)


def _statements(figures: Concepts) -> Iterator[Statement]:
    """Say what the agent holds that one frame does not show. That it is needed takes an intervention."""
    held = [concept for concept in figures.concepts if concept.readable and FRAME in concept.controls]
    held = [
        concept
        for concept in held
        if concept.score - concept.controls[FRAME] >= GAIN
        and (concept.interval is None or concept.interval[0] > concept.controls[FRAME])
    ]
    for concept in sorted(held, key=_margin, reverse=True)[:TOLD]:  # what training put there comes first
        untrained = concept.controls.get(UNTRAINED)
        learned = untrained is None or untrained < concept.score - GAIN
        about = {"site": figures.site, "frame": concept.controls[FRAME], "untrained": untrained, "learned": learned}
        yield WORDS.statement("holds", _margin(concept), one=concept, **about)
    for concept in figures.concepts:
        frame_too = concept.products_controls.get(FRAME, 0.0)
        if concept.in_products and (concept.products or 0.0) >= frame_too + GAIN:
            yield WORDS.statement("in_products", 0.0, one=concept, site=figures.site, frame=frame_too)


def _margin(concept: DecodedConcept) -> float:
    return concept.above or 0.0


def _checks(decoded: list[DecodedConcept]) -> Iterator[Check]:
    # R² far below 0 is a bad probe, not a concept that is found in shuffled labels.
    shuffled = [(max(concept.shuffled, CHANCE[concept.measure] - 1.0), CHANCE[concept.measure]) for concept in decoded]
    off = max(abs(score - chance) for score, chance in shuffled)
    yield WORDS.check("shuffled", off <= TOLERANCE, off, most=TOLERANCE)
    single = [(concept, max(concept.single.get(kind, 0.0) for kind in ("ica", "pca"))) for concept in decoded]
    behind = [
        concept.score - best
        for concept, best in single
        if max(concept.score, best) >= concepts.READABLE[concept.measure]
    ]
    least = min(behind, default=0.0)
    yield WORDS.check("single", least >= -NOISE, least, noise=NOISE)


def _tables(figures: Concepts) -> Iterator[Table]:
    decoded = figures.concepts
    names = list(dict.fromkeys(name for concept in decoded for name in concept.controls))
    rows = []
    for one in decoded:
        # Student's interval may reach beyond the largest score that there is.
        interval = "" if one.interval is None else f" [{one.interval[0]:.2f}, {min(one.interval[1], 1.0):.2f}]"
        controls = [f"{one.controls[name]:z.2f}" for name in names]
        score = f"{one.score:.2f}{interval}"
        rows.append([one.concept, WORDS.text(one.measure), one.rows, score, f"{one.shuffled:z.2f}", *controls])
    yield WORDS.table("concepts", rows, names, site=figures.site)
    singles = [[one.concept, f"{one.score:.2f}", *(f"{one.single[kind]:.2f}" for kind in SINGLE)] for one in decoded]
    yield WORDS.table("single", singles)


def _pictures(decoded: list[DecodedConcept]) -> Iterator[Picture]:
    for measure, chance in CHANCE.items():
        same = [concept for concept in decoded if concept.measure == measure]
        if same:
            series = {WORDS.text("probe"): [concept.score for concept in same]}
            series |= {name: [concept.controls[name] for concept in same] for name in same[0].controls}
            series |= {WORDS.text("component"): [concept.single["ica"] for concept in same]}
            image = bars([concept.concept for concept in same], series, WORDS.text(f"axis_{measure}"), chance)
            yield WORDS.picture("concepts", image, f"concepts_{measure}")


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording",), why_not=nothing_inside)
