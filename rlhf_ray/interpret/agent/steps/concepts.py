"""Step: what can be read off the agent's memory, beside one frame, the untrained agent, and shuffled labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent import concepts, samples
from rlhf_ray.interpret.agent.at_hand import action_names, bars, nothing_inside, recorded, site_name
from rlhf_ray.interpret.agent.concepts import DecodedConcept
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "concepts"
TITLE = "What can be read off the agent's memory"

STEPS = 2500
FRAME, UNTRAINED = "one frame", "untrained agent"
GAIN = 0.05
"""How far above one frame a concept has to be readable for a sentence."""
SAID = 5
CHANCE = {"auc": 0.5, "r2": 0.0}
TOLERANCE = 0.1


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to read."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Probe for each concept."""
    episodes = recorded(context)
    found = samples.samples(
        context.subject.agent,
        episodes,
        most=max(500, round(STEPS * min(1.0, context.subject.effort))),
        seed=context.subject.seed,
    )
    labels = {name: found.cut(each) for name, each in concepts.library(episodes, action_names(context)).items()}
    controls = {FRAME: samples.frames(episodes, found)}
    controls[UNTRAINED] = samples.untrained(context.subject.agent, episodes, found, None, context.subject.seed + 1)
    given = {name: each for name, each in controls.items() if each is not None}
    context.say(f"probes for {len(labels)} concepts")
    decoded = concepts.decode(found.values, labels, found.levels, given, context.subject.seed)
    site = site_name(context.subject.agent)
    values: dict[str, Any] = {"site": site, "steps": len(found), "concepts": [each.values() for each in decoded]}
    write_text(context.out / "concepts.json", json.dumps(values, indent=1) + "\n")
    if not decoded:
        says = "The environment says nothing that varies about its state, and the agent does the same at every step."
        return Section(NAME, TITLE, checks=[Check("there are concepts", None, 0.0, "at least 1", says)], values=values)
    return Section(
        NAME, TITLE, _statements(decoded, site), _checks(decoded), _tables(decoded, site), _pictures(decoded), values
    )


def _statements(decoded: list[DecodedConcept], site: str) -> list[Statement]:
    """Say what the agent holds that one frame does not show. That it is needed takes an intervention."""
    held = [each for each in decoded if each.score >= concepts.READABLE[each.measure] and FRAME in each.controls]
    held = [each for each in held if each.score - each.controls[FRAME] >= GAIN]
    held = [each for each in held if each.interval is None or each.interval[0] > each.controls[FRAME]]
    said = []
    for each in sorted(held, key=_margin, reverse=True)[:SAID]:  # what training put there comes first
        measure = "AUC" if each.measure == "auc" else "R²"
        beside = f"one frame {each.controls[FRAME]:z.2f}, shuffled labels {each.shuffled:z.2f}"
        if UNTRAINED in each.controls:
            beside += f", the untrained agent {each.controls[UNTRAINED]:z.2f}"
        text = (
            f"The agent's {site} holds the concept “{each.concept}” better than one frame shows it: {measure} {each.score:.2f} "
            f"({beside})."
        )
        if each.controls.get(UNTRAINED, -np.inf) >= each.score - GAIN:
            text += " It did not have to learn that: an untrained memory holds it too."
        said.append(Statement("holds", text, _margin(each), each.concept))
    return said


def _margin(concept: DecodedConcept) -> float:
    return concept.score - max(concept.controls.values())


def _checks(decoded: list[DecodedConcept]) -> list[Check]:
    off = max(abs(max(each.shuffled, CHANCE[each.measure] - 1.0) - CHANCE[each.measure]) for each in decoded)
    single = [(each, max(each.single.get("ica", 0.0), each.single.get("pca", 0.0))) for each in decoded]
    readable = [(each, best) for each, best in single if max(each.score, best) >= concepts.READABLE[each.measure]]
    least = min((each.score - best for each, best in readable), default=0.0)
    return [
        Check(
            "probes of shuffled labels find nothing",
            off <= TOLERANCE,
            off,
            f"within {TOLERANCE} of chance",
            "" if off <= TOLERANCE else "Some concepts are too rare for these figures: record more episodes.",
        ),
        Check(
            "a probe reads every readable concept as well as any single component",
            least >= -0.02,
            least,
            "at least 0 (0.02 of noise)",
            ""
            if least >= -0.02
            else "A single component reads some concept better than its probe: the probe overfits.",
        ),
    ]


def _tables(decoded: list[DecodedConcept], site: str) -> list[Table]:
    names = list(dict.fromkeys(name for each in decoded for name in each.controls))
    rows = []
    for each in decoded:
        # Student's interval may reach beyond the largest score that there is.
        interval = "" if each.interval is None else f" [{each.interval[0]:.2f}, {min(each.interval[1], 1.0):.2f}]"
        controls = [f"{each.controls[name]:z.2f}" for name in names]
        measure = "AUC" if each.measure == "auc" else "R²"
        rows.append(
            [each.concept, measure, f"{each.score:.2f}{interval}", *controls, f"{each.shuffled:z.2f}", each.rows]
        )
    caption = (
        f"How well each concept is read off the agent's {site}, by a linear probe, on levels that it was not fitted to."
    )
    columns = ("concept", "measure", site, *names, "shuffled labels", "steps")
    single = [
        [each.concept, *(f"{each.single[kind]:.2f}" for kind in ("unit", "pca", "ica")), f"{each.score:.2f}"]
        for each in decoded
    ]
    best = (
        "The best single unit, principal component and independent component, chosen on other levels, beside the probe."
    )
    return [
        Table(columns, rows, caption),
        Table(("concept", "unit", "principal component", "independent component", "probe"), single, best),
    ]


def _pictures(decoded: list[DecodedConcept]) -> list[Picture]:
    found = []
    for measure, label in (("auc", "AUC on other levels (dashed: chance)"), ("r2", "R² on other levels")):
        own = [each for each in decoded if each.measure == measure]
        if own:
            series = {"probe of the agent": [each.score for each in own]}
            series |= {name: [each.controls[name] for each in own] for name in own[0].controls}
            series |= {"best independent component": [each.single["ica"] for each in own]}
            image = bars([each.concept for each in own], series, label, CHANCE[measure])
            found.append(Picture(f"concepts_{measure}", image, "What can be read off the agent, beside controls."))
    return found


STEP = Step(NAME, TITLE, run, needs=("recording",), why_not=why_not)
